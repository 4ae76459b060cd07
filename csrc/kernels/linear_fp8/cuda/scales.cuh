// csrc/kernels/linear_fp8/cuda/scales.cuh — from scale bytes to powers of two.
#pragma once
#include <cstdint>

#include "kernels/linear_fp8/cuda/shape.h"

namespace deepinfer::kernels::linear_fp8 {

// 2^(code - 127): the code is fp32's exponent field, but 0 is a subnormal and 255 is NaN.
__device__ __forceinline__ float power_of_two(std::uint32_t code) {
  const std::uint32_t edge = code == 0 ? 0x00400000u : 0x7FC00000u;
  return __uint_as_float(code == 0 || code == 255 ? edge : code << 23);
}

// The four codes of pipeline step `step` of one row of `blocks` codes; beyond the end they are 0,
// where the products are zeros too.
__device__ __forceinline__ std::uint32_t step_codes(const std::uint8_t* row, int step, int blocks) {
  const int first = step * kBlocksPerStep;
  if (blocks % kBlocksPerStep == 0) {
    return __ldg(reinterpret_cast<const std::uint32_t*>(row + first));
  }
  std::uint32_t codes = 0;
#pragma unroll 1
  for (int i = 0; i < kBlocksPerStep && first + i < blocks; ++i) {
    codes |= static_cast<std::uint32_t>(row[first + i]) << (8 * i);
  }
  return codes;
}

__device__ __forceinline__ float4 step_scales(std::uint32_t codes) {
  return make_float4(power_of_two(codes & 255), power_of_two(codes >> 8 & 255),
                     power_of_two(codes >> 16 & 255), power_of_two(codes >> 24));
}

}  // namespace deepinfer::kernels::linear_fp8
