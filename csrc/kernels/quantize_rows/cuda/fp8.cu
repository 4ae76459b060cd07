// csrc/kernels/quantize_rows/cuda/fp8.cu — bf16 rows to FP8-32, plain or normed; see
// quantize_rows.h. Bound by memory: 3.03 bytes a channel, 5.03 with the normed row.
#include <algorithm>

#include "kernels/quantize_rows/cuda/chunk.cuh"
#include "kernels/quantize_rows/cuda/formats.cuh"
#include "kernels/quantize_rows/cuda/norm.cuh"
#include "kernels/quantize_rows/cuda/quantize_rows.h"

namespace {

using namespace deepinfer::kernels::rows;

constexpr int kGroup = 32 / kChunk;  // lanes that share a scale
constexpr int kTile = 4;             // chunks of a lane in the plain kernel
constexpr int kMaxChannels = 8192;

// Scales of `kChunks` passes of a warp. Lanes of a group all know theirs, so lane l stores that of
// pass l % 4: one access of 32 neighbouring bytes for four passes.
template <int kChunks>
__device__ void store_scales(const std::uint32_t (&found)[kChunks], std::uint8_t* scales,
                             std::int64_t step, std::int64_t end) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int base = 0; base < kChunks; base += kGroup) {
    std::uint32_t mine = 0;
#pragma unroll
    for (int k = base; k < base + kGroup && k < kChunks; ++k)
      if (lane % kGroup == k - base) mine = found[k];
    const std::int64_t place = (base + lane % kGroup) * step + lane / kGroup;
    if (base + lane % kGroup < kChunks && place < end)
      scales[place] = static_cast<std::uint8_t>(mine);
  }
}

// The matrix as one line of chunks: groups of 32 channels never cross a row. A warp takes 128
// chunks, that is 32 scales.
__global__ void plain(const uint4* __restrict__ x, uint2* __restrict__ codes,
                      std::uint8_t* __restrict__ scales, std::int64_t chunks) {
  const std::int64_t warp =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const std::int64_t first = warp * kWarp * kTile;
  const int lane = threadIdx.x % kWarp;
  uint4 chunk[kTile];
#pragma unroll
  for (int k = 0; k < kTile; ++k) {
    const std::int64_t c = first + k * kWarp + lane;
    chunk[k] = c < chunks ? __ldcs(x + c) : make_uint4(0, 0, 0, 0);
  }
  std::uint32_t scale[kTile];
#pragma unroll
  for (int k = 0; k < kTile; ++k) {
    scale[k] = fp8_scale(largest_of_lanes<kGroup>(largest(chunk[k])));
    float value[kChunk];
    unpack(chunk[k], value);
    const std::int64_t c = first + k * kWarp + lane;
    if (c < chunks) codes[c] = fp8_codes(value, scale[k]);
  }
  store_scales(scale, scales + first / kGroup, kWarp / kGroup, (chunks - first) / kGroup);
}

struct Row {
  int channels;
  float eps;
};

__device__ float sum_of_warps(float sum, int warps) {
  if (warps == 1) return sum;
  __shared__ float partial[4];
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = sum;
  __syncthreads();
  return __fadd_rn(__fadd_rn(partial[0], partial[1]), __fadd_rn(partial[2], partial[3]));
}

// kWarps 1: each warp has a row of its own, blockDim / 32 rows a block. kWarps 4: a block a row.
template <int kChunks, int kWarps>
__global__ void normed(const uint4* __restrict__ x, const uint4* __restrict__ weight,
                       uint4* __restrict__ out, uint2* __restrict__ codes,
                       std::uint8_t* __restrict__ scales, std::int64_t rows, Row row) {
  constexpr int kLanes = kWarps * kWarp;
  const std::int64_t number =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  if (number >= rows) return;  // whole warps
  const int lane = threadIdx.x % kLanes, chunks = row.channels / kChunk;
  uint4 chunk[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = lane + k * kLanes;
    chunk[k] = c < chunks ? __ldcs(x + number * chunks + c) : make_uint4(0, 0, 0, 0);
  }
  float sum = 0.0f, value[kChunk];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    unpack(chunk[k], value);
    sum = __fadd_rn(sum, sum_of_squares(value));
  }
  const float inverse =
      inverse_root(sum_of_warps(sum_of_lanes(sum), kWarps), row.channels, row.eps);
  std::uint32_t found[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = lane + k * kLanes;
    const bool here = c < chunks;
    unpack(chunk[k], value);
    scale(value, here ? __ldg(weight + c) : make_uint4(0, 0, 0, 0), inverse);
    const uint4 rounded = pack(value);
    found[k] = fp8_scale(largest_of_lanes<kGroup>(largest(rounded)));
    unpack(rounded, value);
    if (!here) continue;
    if (out != nullptr) out[number * chunks + c] = rounded;
    codes[number * chunks + c] = fp8_codes(value, found[k]);
  }
  const int warp_first = lane / kWarp * (kWarp / kGroup);
  store_scales(found, scales + number * (chunks / kGroup) + warp_first, kLanes / kGroup,
               chunks / kGroup - warp_first);
}

template <int kChunks, int kWarps>
int launch_normed(const void* x, const void* weight, void* out, void* codes, void* scales,
                  std::int64_t rows, Row row, cudaStream_t stream) {
  // A few rows spread over the multiprocessors; many share blocks, to have all warps resident.
  const int per_block = kWarps > 1 || rows <= 1024 ? 1 : 4;
  const auto blocks = static_cast<unsigned>((rows + per_block - 1) / per_block);
  normed<kChunks, kWarps><<<blocks, per_block * kWarps * kWarp, 0, stream>>>(
      static_cast<const uint4*>(x), static_cast<const uint4*>(weight), static_cast<uint4*>(out),
      static_cast<uint2*>(codes), static_cast<std::uint8_t*>(scales), rows, row);
  return cudaGetLastError();
}

}  // namespace

extern "C" {

int deepinfer_cuda_quantize_rows_fp8(const void* x, void* codes, void* scales, std::int64_t rows,
                                     std::int64_t channels, void* stream) {
  if (rows < 0 || channels <= 0 || channels % 32 != 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (!usable(x, codes, scales)) return cudaErrorInvalidValue;
  const std::int64_t chunks = rows * (channels / kChunk);
  const std::int64_t warps = (chunks + kWarp * kTile - 1) / (kWarp * kTile);
  const std::int64_t per_block = warps <= 1024 ? 1 : 4;
  const std::int64_t blocks = (warps + per_block - 1) / per_block;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidValue;
  plain<<<static_cast<unsigned>(blocks), static_cast<unsigned>(per_block * kWarp), 0,
          static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(x),
                                               static_cast<uint2*>(codes),
                                               static_cast<std::uint8_t*>(scales), chunks);
  return cudaGetLastError();
}

int deepinfer_cuda_quantize_rows_normed_fp8(const void* x, const void* weight, void* normed,
                                            void* codes, void* scales, std::int64_t rows,
                                            std::int64_t channels, float eps, void* stream) {
  if (rows < 0 || rows > 0x7FFFFFFF || channels <= 0 || channels % 32 != 0 ||
      channels > kMaxChannels || !(eps >= 0.0f))
    return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (!usable(x, weight, codes, scales) || !aligned(normed)) return cudaErrorInvalidValue;
  const Row row{static_cast<int>(channels), eps};
  const auto on = static_cast<cudaStream_t>(stream);
  const auto with = [&](auto launch) {
    return launch(x, weight, normed, codes, scales, rows, row, on);
  };
  if (channels <= 256) return with(launch_normed<1, 1>);
  if (channels <= 512) return with(launch_normed<2, 1>);
  if (channels <= 1024) return with(launch_normed<4, 1>);
  if (channels <= 1280) return with(launch_normed<5, 1>);
  if (channels <= 2048) return with(launch_normed<8, 1>);
  if (channels <= 4096) return with(launch_normed<4, 4>);
  if (channels <= 5120) return with(launch_normed<5, 4>);
  return with(launch_normed<8, 4>);
}

}  // extern "C"
