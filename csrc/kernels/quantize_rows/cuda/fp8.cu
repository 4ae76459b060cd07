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
constexpr int kThreads = 128;
constexpr std::int64_t kFewRows = 1024;
constexpr int kMaxChannels = 8192;

// The matrix as one line of pairs of chunks, one a thread: groups of 32 channels never cross a row.
// Codes leave in 16 bytes.
__global__ void __launch_bounds__(kThreads)
    plain(const uint4* __restrict__ x, uint4* __restrict__ codes, std::uint8_t* __restrict__ scales,
          std::int64_t pairs) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool here = place < pairs;
  const uint4 nothing = make_uint4(0, 0, 0, 0);
  const uint4 first = here ? __ldg(x + 2 * place) : nothing;
  const uint4 second = here ? __ldg(x + 2 * place + 1) : nothing;
  const std::uint32_t scale =
      fp8_scale(largest_of_lanes<kGroup / 2>(fmaxf(largest(first), largest(second))));
  if (!here) return;
  float value[kChunk];
  unpack(first, value);
  const uint2 low = fp8_codes(value, scale);
  unpack(second, value);
  const uint2 high = fp8_codes(value, scale);
  codes[place] = make_uint4(low.x, low.y, high.x, high.y);
  if (place % 2 == 0) scales[place / 2] = static_cast<std::uint8_t>(scale);
}

struct Row {
  int channels;
  float eps;
};

// The sum over a row that the four warps of a block hold: chunk l + 128 k belongs to lane l.
template <int kChunks>
__device__ float sum_of_block(const uint4 (&chunk)[kChunks]) {
  __shared__ float partial[4];
  float sum = 0.0f, value[kChunk];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    unpack(chunk[k], value);
    sum = __fadd_rn(sum, sum_of_squares(value));
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = sum;
  __syncthreads();
  return __fadd_rn(__fadd_rn(partial[0], partial[1]), __fadd_rn(partial[2], partial[3]));
}

// Blocks that a multiprocessor must hold. Left to itself (0), the compiler finds the registers that
// the row needs for sm_90, but spills one for sm_100.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kResident = 1;
#else
constexpr int kResident = 0;
#endif

// kWarps 1: each warp has a row of its own, blockDim / 32 rows a block. kWarps 4: a block a row.
// kEarly: weights are loaded with the row, one wait for both; else late, in fewer registers.
template <int kChunks, int kWarps, bool kEarly>
__global__ void __launch_bounds__(kThreads, kResident)
    normed(const uint4* __restrict__ x, const uint4* __restrict__ weight, uint4* __restrict__ out,
           uint2* __restrict__ codes, std::uint8_t* __restrict__ scales, std::int64_t rows,
           Row row) {
  constexpr int kLanes = kWarps * kWarp;
  const std::int64_t number =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  if (number >= rows) return;  // whole warps
  const int lane = threadIdx.x % kLanes, chunks = row.channels / kChunk;
  uint4 chunk[kChunks], factors[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = lane + k * kLanes;
    chunk[k] = c < chunks ? __ldg(x + number * chunks + c) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = lane + k * kLanes;
    factors[k] = kEarly && c < chunks ? __ldg(weight + c) : make_uint4(0, 0, 0, 0);
  }
  const float inverse =
      inverse_root(kWarps == 1 ? sum_of_row(chunk) : sum_of_block(chunk), row.channels, row.eps);
  std::uint32_t mine[(kChunks + kGroup - 1) / kGroup];  // scales that this lane stores
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = lane + k * kLanes;
    float value[kChunk];
    unpack(chunk[k], value);
    if (!kEarly && c < chunks) factors[k] = __ldg(weight + c);
    scale(value, factors[k], inverse);
    const uint4 rounded = pack(value);
    const std::uint32_t found = fp8_scale(largest_of_lanes<kGroup>(largest(rounded)));
    if (lane % kGroup == k % kGroup) mine[k / kGroup] = found;
    unpack(rounded, value);
    if (c >= chunks) continue;
    if (out != nullptr) out[number * chunks + c] = rounded;
    codes[number * chunks + c] = fp8_codes(value, found);
  }
  // The lanes of a group all know its scale, so lane l stores those of passes l % 4, l % 4 + 4,
  // ...: one access of neighbouring bytes for four passes.
#pragma unroll
  for (int base = 0; base < kChunks; base += kGroup) {
    const int k = base + lane % kGroup, group = k * (kLanes / kGroup) + lane / kGroup;
    if (k < kChunks && group < chunks / kGroup)
      scales[number * (chunks / kGroup) + group] = static_cast<std::uint8_t>(mine[base / kGroup]);
  }
}

template <int kChunks, int kWarps, bool kEarly>
int launch_normed(const void* x, const void* weight, void* out, void* codes, void* scales,
                  std::int64_t rows, Row row, cudaStream_t stream) {
  const int per_block = kWarps > 1 ? 1 : 4;
  const auto blocks = static_cast<unsigned>((rows + per_block - 1) / per_block);
  normed<kChunks, kWarps, kEarly><<<blocks, per_block * kWarps * kWarp, 0, stream>>>(
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
  const std::int64_t pairs = rows * (channels / (2 * kChunk));
  const std::int64_t blocks = (pairs + kThreads - 1) / kThreads;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidValue;
  plain<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(x), static_cast<uint4*>(codes), static_cast<std::uint8_t*>(scales),
      pairs);
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
  // Few rows: four warps each, to be done sooner. Many: a warp each, with more loads in flight.
  if (rows > kFewRows) {
    if (channels <= 256) return with(launch_normed<1, 1, false>);
    if (channels <= 512) return with(launch_normed<2, 1, false>);
    if (channels <= 1024) return with(launch_normed<4, 1, false>);
    if (channels <= 1280) return with(launch_normed<5, 1, false>);
    if (channels <= 2048) return with(launch_normed<8, 1, false>);
    if (channels <= 4096) return with(launch_normed<4, 4, false>);
    if (channels <= 5120) return with(launch_normed<5, 4, false>);
    return with(launch_normed<8, 4, false>);
  }
  if (channels <= 1024) return with(launch_normed<1, 4, true>);
  if (channels <= 2048) return with(launch_normed<2, 4, true>);
  if (channels <= 4096) return with(launch_normed<4, 4, true>);
  if (channels <= 5120) return with(launch_normed<5, 4, true>);
  return with(launch_normed<8, 4, true>);
}

}  // extern "C"
