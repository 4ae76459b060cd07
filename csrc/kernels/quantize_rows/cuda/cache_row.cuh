// csrc/kernels/quantize_rows/cuda/cache_row.cuh — what the rows written to caches share: a warp
// holds a row, norms it, turns its trailing channels, and stores it at a slot.
#pragma once
#include "kernels/quantize_rows/cuda/chunk.cuh"
#include "kernels/quantize_rows/cuda/formats.cuh"
#include "kernels/quantize_rows/cuda/norm.cuh"
#include "kernels/quantize_rows/cuda/rotation.cuh"

namespace deepinfer::kernels::rows {

struct CacheRow {
  std::int64_t tokens;
  std::int64_t records;  // slots that exist
  int channels;
  int pairs;
  int slots_are_int64;
  float eps;
};

// The token of this warp, or -1 beyond the last.
__device__ inline std::int64_t token_of_warp(const CacheRow& shape) {
  const std::int64_t token =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  return token < shape.tokens ? token : -1;
}

// What the caller gives beside the rows themselves.
struct RowSources {
  const uint4* weight;
  const std::int64_t* positions;
  const float* freqs;
  const void* slots;
};

// A row in a warp: kChunks chunks of each lane, absent ones zero, and all else that it will need:
// loaded together, so that one wait covers it.
template <int kChunks>
struct HeldRow {
  uint4 chunk[kChunks];
  uint4 factors[kChunks];  // norm weights
  float frequency;         // of pair `lane`
  std::int64_t position;
  std::int64_t slot;  // -1: none
};

template <int kChunks>
__device__ void load_row(HeldRow<kChunks>& row, const uint4* __restrict__ x, std::int64_t token,
                         const CacheRow& shape) {
  const int chunks = shape.channels / kChunk;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = static_cast<int>(threadIdx.x) % kWarp + k * kWarp;
    row.chunk[k] = c < chunks ? __ldg(x + token * chunks + c) : make_uint4(0, 0, 0, 0);
  }
}

template <int kChunks>
__device__ void load_sources(HeldRow<kChunks>& row, const RowSources& from, std::int64_t token,
                             const CacheRow& shape) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, chunks = shape.channels / kChunk;
  row.slot =
      shape.slots_are_int64 != 0
          ? __ldg(static_cast<const long long*>(from.slots) + token)
          : static_cast<std::int64_t>(__ldg(static_cast<const std::int32_t*>(from.slots) + token));
  if (row.slot >= shape.records) row.slot = -1;
  row.position = __ldg(reinterpret_cast<const long long*>(from.positions) + token);
  row.frequency = lane < shape.pairs ? __ldg(from.freqs + lane) : 0.0f;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = lane + k * kWarp;
    row.factors[k] = c < chunks ? __ldg(from.weight + c) : make_uint4(0, 0, 0, 0);
  }
}

// Norms the row in place, rounding to bf16.
template <int kChunks>
__device__ void norm_row(HeldRow<kChunks>& row, const CacheRow& shape) {
  const float inverse = inverse_root(sum_of_row(row.chunk), shape.channels, shape.eps);
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    float value[kChunk];
    unpack(row.chunk[k], value);
    scale(value, row.factors[k], inverse);
    row.chunk[k] = pack(value);
  }
}

// Turns the trailing channels, rounding to bf16. Lane i makes the turn of pair i for all.
template <int kChunks>
__device__ void rotate_row(HeldRow<kChunks>& row, const CacheRow& shape) {
  constexpr int kPairs = kChunk / 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, chunks = shape.channels / kChunk;
  const int rotated = chunks - shape.pairs / kPairs;
  const Turn own = turn(__fmul_rn(static_cast<float>(row.position), row.frequency));
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    if (k * kWarp + kWarp <= rotated) continue;  // the same for the whole warp
    const int c = lane + k * kWarp;
    Turn turns[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int from = (c - rotated) * kPairs + i;
      turns[i].cos = __shfl_sync(kAllLanes, own.cos, from & (kWarp - 1));
      turns[i].sin = __shfl_sync(kAllLanes, own.sin, from & (kWarp - 1));
    }
    if (c < rotated || c >= chunks) continue;
    float value[kChunk];
    unpack(row.chunk[k], value);
    rotate(value, turns);
    row.chunk[k] = pack(value);
  }
}

// FP4-16 of a row: C / 2 bytes of codes, then C / 16 scales. Both lanes of a group know its scale;
// lane l stores that of pass l % 2.
template <int kChunks>
__device__ void store_fp4_16(const uint4 (&chunk)[kChunks], std::uint8_t* record, int channels) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, chunks = channels / kChunk;
  std::uint32_t mine = 0;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const std::uint32_t found = fp4_e4m3_scale(largest_of_lanes<2>(largest(chunk[k])));
    if (lane % 2 == k) mine = found;
    const int c = lane + k * kWarp;
    float value[kChunk];
    unpack(chunk[k], value);
    if (c < chunks) reinterpret_cast<std::uint32_t*>(record)[c] = fp4_e4m3_codes(value, found);
  }
  const int place = lane % 2 * (kWarp / 2) + lane / 2;
  if (lane % 2 < kChunks && place < chunks / 2)
    record[channels / 2 + place] = static_cast<std::uint8_t>(mine);
}

// Norm, rotation, FP4-16 and the stores of a row of the main cache, from its bf16 latent.
template <int kChunks>
__device__ void store_entry(HeldRow<kChunks>& row, uint4* normed, std::uint8_t* cache,
                            std::int64_t token, const CacheRow& shape) {
  norm_row(row, shape);
  const int chunks = shape.channels / kChunk;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = static_cast<int>(threadIdx.x) % kWarp + k * kWarp;
    if (normed != nullptr && c < chunks) normed[token * chunks + c] = row.chunk[k];
  }
  if (row.slot < 0) return;
  rotate_row(row, shape);
  store_fp4_16(row.chunk, cache + row.slot * (shape.channels / 2 + shape.channels / 16),
               shape.channels);
}

// A size as int; -1, which allowed() refuses, where it is none.
inline int size_of(std::int64_t value) {
  return value < 0 || value > 0x7FFFFFFF ? -1 : static_cast<int>(value);
}

inline bool allowed(const CacheRow& shape, int group) {
  return shape.tokens >= 0 && shape.tokens <= 0x7FFFFFFF && shape.records >= 0 &&
         shape.channels > 0 && shape.channels <= 512 && shape.channels % group == 0 &&
         shape.pairs > 0 && shape.pairs <= kWarp && shape.pairs % (kChunk / 2) == 0 &&
         2 * shape.pairs <= shape.channels && shape.eps >= 0.0f;
}

// Warps of a block: few rows spread over the multiprocessors.
inline int rows_per_block(std::int64_t tokens) { return tokens <= 1024 ? 1 : 4; }

inline unsigned blocks_for(std::int64_t tokens) {
  const int per_block = rows_per_block(tokens);
  return static_cast<unsigned>((tokens + per_block - 1) / per_block);
}

}  // namespace deepinfer::kernels::rows
