// csrc/kernels/quantize_rows/cuda/norm.cuh — RMSNorm whose every rounding is defined.
//
// Sum of squares: fp32; squares of bf16 are exact. The eight channels of a chunk in ascending
// order; the chunks l, l + 128, l + 256, ... of each of 128 lanes in ascending order; lanes of a
// warp whose numbers differ in bit 4, 3, 2, 1, 0 in that order; then warps, (0 + 1) + (2 + 3). Four
// warps may have a row, or one warp that plays all four: the sums are the same.
// Then r = 1 / sqrt(sum / C + eps), and weight * x (exact) times r; each operation is IEEE.
#pragma once
#include "kernels/quantize_rows/cuda/chunk.cuh"

namespace deepinfer::kernels::rows {

__device__ inline float sum_of_squares(const float (&x)[kChunk]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) sum = __fmaf_rn(x[i], x[i], sum);
  return sum;
}

__device__ inline float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

__device__ inline float with_lane(float value, int distance) {
  return __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, distance));
}

// The sum over a row that one warp holds: chunk l + 32 k belongs to lane l of warp k % 4. The four
// sums are reduced together: lanes with bit 4 go on with warps 2 and 3, those with bit 3 with the
// odd ones.
template <int kChunks>
__device__ float sum_of_row(const uint4 (&chunk)[kChunks]) {
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    float value[kChunk];
    unpack(chunk[k], value);
    sums[k % 4] = __fadd_rn(sums[k % 4], sum_of_squares(value));
  }
  if constexpr (kChunks == 1) return sum_of_lanes(sums[0]);
  const bool high = threadIdx.x & 16, odd = threadIdx.x & 8;
  if constexpr (kChunks == 2) {
    float kept = high ? sums[1] : sums[0];
    kept = __fadd_rn(kept, __shfl_xor_sync(kAllLanes, high ? sums[0] : sums[1], 16));
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) kept = with_lane(kept, distance);
    return with_lane(kept, 16);
  }
  float even = high ? sums[2] : sums[0], other = high ? sums[3] : sums[1];
  even = __fadd_rn(even, __shfl_xor_sync(kAllLanes, high ? sums[0] : sums[2], 16));
  other = __fadd_rn(other, __shfl_xor_sync(kAllLanes, high ? sums[1] : sums[3], 16));
  float kept = odd ? other : even;
  kept = __fadd_rn(kept, __shfl_xor_sync(kAllLanes, odd ? even : other, 8));
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) kept = with_lane(kept, distance);
  return with_lane(with_lane(kept, 8), 16);
}

__device__ inline float inverse_root(float sum, int channels, float eps) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(channels)), eps)));
}

__device__ inline void scale(float (&x)[kChunk], const uint4& weight, float inverse) {
  float w[kChunk];
  unpack(weight, w);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = __fmul_rn(__fmul_rn(w[i], x[i]), inverse);
}

}  // namespace deepinfer::kernels::rows
