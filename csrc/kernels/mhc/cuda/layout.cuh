// csrc/kernels/mhc/cuda/layout.cuh — sizes that the two kernels of mhc.cu agree on.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace deepinfer::kernels::mhc {

constexpr int kHidden = 5120;
constexpr int kStreams = 4;
constexpr int kRows = (2 + kStreams) * kStreams;  // of fn
constexpr int kSlices = 16;                       // blocks that share a token
constexpr int kSliceWidth = kHidden / kSlices;    // channels
constexpr int kWarps = 10;                        // of a slice, 32 channels each
constexpr int kThreads = kWarps * 32;
constexpr int kGroup = 32;  // channels that share a scale
constexpr int kScales = kHidden / kGroup;
constexpr int kTile = 8;  // tokens that a block works on at a time: columns of an MMA

// Sums per token and slice, in `partial`: the rows of fn, then two squared norms.
constexpr int kStreamSquares = kRows;
constexpr int kCollapsedSquares = kRows + 1;
constexpr int kSums = kRows + 2;
constexpr int kPartialStride = 32;

static_assert(kSliceWidth == kWarps * kGroup);

__device__ __forceinline__ float low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
__device__ __forceinline__ std::uint32_t pack(float low_half, float high_half) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low_half, high_half);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

}  // namespace deepinfer::kernels::mhc
