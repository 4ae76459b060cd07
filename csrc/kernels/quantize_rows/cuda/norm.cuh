// csrc/kernels/quantize_rows/cuda/norm.cuh — RMSNorm whose every rounding is defined.
//
// Sum of squares: fp32; squares of bf16 are exact. The eight channels of a chunk in ascending
// order, the chunks of a lane (l, l + L, l + 2 L, ...) in ascending order, then lanes whose numbers
// differ in bit 4, 3, 2, 1, 0 in that order, then, for L = 128, warps 0 + 1, 2 + 3 and these two.
// L is 32 for rows of at most 2048 channels and 128 above: it depends on the row's width alone.
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
