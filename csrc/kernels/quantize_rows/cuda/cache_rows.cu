// csrc/kernels/quantize_rows/cuda/cache_rows.cu — rows of the window, main and index caches; see
// quantize_rows.h. A warp a row; everything between the load and the stores stays in registers.
#include "kernels/quantize_rows/cuda/cache_row.cuh"
#include "kernels/quantize_rows/cuda/formats.cuh"
#include "kernels/quantize_rows/cuda/quantize_rows.h"

namespace {

using namespace deepinfer::kernels::rows;

constexpr int kGroup = 32 / kChunk;  // lanes that share a scale

// Records of C + C / 32 bytes are aligned to 8 bytes where C is a multiple of 256, else to 2.
__device__ void store_codes(std::uint8_t* place, const uint2& codes, int channels) {
  if (channels % 256 == 0) {
    *reinterpret_cast<uint2*>(place) = codes;
    return;
  }
  const std::uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    reinterpret_cast<std::uint16_t*>(place)[i] =
        static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
}

template <int kChunks>
__global__ void window(const uint4* __restrict__ x, RowSources from,
                       std::uint8_t* __restrict__ cache, CacheRow shape) {
  const std::int64_t token = token_of_warp(shape);
  if (token < 0) return;
  HeldRow<kChunks> row;
  load_row(row, x, token, shape);
  load_sources(row, from, token, shape);
  if (row.slot < 0) return;
  norm_row(row, shape);
  rotate_row(row, shape);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, chunks = shape.channels / kChunk;
  std::uint8_t* record = cache + row.slot * (shape.channels + shape.channels / 32);
  std::uint32_t mine = 0;  // of pass lane % 4: all lanes of a group know its scale
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const std::uint32_t found = fp8_scale(largest_of_lanes<kGroup>(largest(row.chunk[k])));
    if (lane % kGroup == k) mine = found;
    const int c = lane + k * kWarp;
    float value[kChunk];
    unpack(row.chunk[k], value);
    if (c < chunks) store_codes(record + c * kChunk, fp8_codes(value, found), shape.channels);
  }
  const int place = lane % kGroup * (kWarp / kGroup) + lane / kGroup;
  if (lane % kGroup < kChunks && place < shape.channels / 32)
    record[shape.channels + place] = static_cast<std::uint8_t>(mine);
}

template <int kChunks>
__global__ void entry(const uint4* __restrict__ x, RowSources from, uint4* __restrict__ normed,
                      std::uint8_t* __restrict__ cache, CacheRow shape) {
  const std::int64_t token = token_of_warp(shape);
  if (token < 0) return;
  HeldRow<kChunks> row;
  load_row(row, x, token, shape);
  load_sources(row, from, token, shape);
  store_entry(row, normed, cache, token, shape);
}

template <int kChunks>
__global__ void index_key(const uint4* __restrict__ x, RowSources from,
                          std::uint8_t* __restrict__ cache, CacheRow shape, int block_entries) {
  const std::int64_t token = token_of_warp(shape);
  if (token < 0) return;
  HeldRow<kChunks> row;
  load_row(row, x, token, shape);
  load_sources(row, from, token, shape);
  if (row.slot < 0) return;
  norm_row(row, shape);
  rotate_row(row, shape);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, chunks = shape.channels / kChunk;
  const int data = shape.channels / 2, scales = shape.channels / 32;
  const std::int64_t block = row.slot / block_entries, place = row.slot % block_entries;
  std::uint8_t* begin = cache + block * block_entries * (data + scales);
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const std::uint32_t found = fp4_scale(largest_of_lanes<kGroup>(largest(row.chunk[k])));
    const int c = lane + k * kWarp;
    if (c >= chunks) continue;
    reinterpret_cast<std::uint32_t*>(begin + place * data)[c] = fp4_codes(row.chunk[k], found);
    if (lane % kGroup == 0)
      begin[block_entries * data + place * scales + c / kGroup] = static_cast<std::uint8_t>(found);
  }
}

CacheRow row_of(std::int64_t tokens, std::int64_t records, std::int64_t channels,
                std::int64_t pairs, std::int64_t slots_are_int64, float eps) {
  return {tokens,
          records,
          size_of(channels),
          size_of(pairs),
          static_cast<int>(slots_are_int64 != 0),
          eps};
}

RowSources sources(const void* weight, const void* positions, const void* freqs,
                   const void* slots) {
  return {static_cast<const uint4*>(weight), static_cast<const std::int64_t*>(positions),
          static_cast<const float*>(freqs), slots};
}

}  // namespace

extern "C" {

int deepinfer_cuda_rows_window(const void* x, const void* weight, const void* positions,
                               const void* freqs, const void* slots, void* cache,
                               std::int64_t tokens, std::int64_t channels, std::int64_t pairs,
                               std::int64_t records, std::int64_t slots_are_int64, float eps,
                               void* stream) {
  const CacheRow shape = row_of(tokens, records, channels, pairs, slots_are_int64, eps);
  if (!allowed(shape, 64)) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(x, weight, positions, freqs, slots, cache)) return cudaErrorInvalidValue;
  const auto run = [&](auto kernel) {
    kernel<<<blocks_for(tokens), rows_per_block(tokens) * kWarp, 0,
             static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(x),
                                                  sources(weight, positions, freqs, slots),
                                                  static_cast<std::uint8_t*>(cache), shape);
    return static_cast<int>(cudaGetLastError());
  };
  return channels <= 256 ? run(window<1>) : run(window<2>);
}

int deepinfer_cuda_rows_entry(const void* x, const void* weight, const void* positions,
                              const void* freqs, const void* slots, void* normed, void* cache,
                              std::int64_t tokens, std::int64_t channels, std::int64_t pairs,
                              std::int64_t records, std::int64_t slots_are_int64, float eps,
                              void* stream) {
  const CacheRow shape = row_of(tokens, records, channels, pairs, slots_are_int64, eps);
  if (!allowed(shape, 64)) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(x, weight, positions, freqs, slots, cache) || !aligned(normed))
    return cudaErrorInvalidValue;
  const auto run = [&](auto kernel) {
    kernel<<<blocks_for(tokens), rows_per_block(tokens) * kWarp, 0,
             static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint4*>(x), sources(weight, positions, freqs, slots),
        static_cast<uint4*>(normed), static_cast<std::uint8_t*>(cache), shape);
    return static_cast<int>(cudaGetLastError());
  };
  return channels <= 256 ? run(entry<1>) : run(entry<2>);
}

int deepinfer_cuda_rows_index_key(const void* x, const void* weight, const void* positions,
                                  const void* freqs, const void* slots, void* cache,
                                  std::int64_t tokens, std::int64_t channels, std::int64_t pairs,
                                  std::int64_t blocks, std::int64_t block_entries,
                                  std::int64_t slots_are_int64, float eps, void* stream) {
  if (blocks < 0 || block_entries <= 0 || block_entries % 4 != 0 || block_entries > 1 << 20)
    return cudaErrorInvalidValue;
  const CacheRow shape =
      row_of(tokens, blocks * block_entries, channels, pairs, slots_are_int64, eps);
  if (!allowed(shape, 32)) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(x, weight, positions, freqs, slots, cache)) return cudaErrorInvalidValue;
  const auto run = [&](auto kernel) {
    kernel<<<blocks_for(tokens), rows_per_block(tokens) * kWarp, 0,
             static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint4*>(x), sources(weight, positions, freqs, slots),
        static_cast<std::uint8_t*>(cache), shape, static_cast<int>(block_entries));
    return static_cast<int>(cudaGetLastError());
  };
  return channels <= 256 ? run(index_key<1>) : run(index_key<2>);
}

}  // extern "C"
