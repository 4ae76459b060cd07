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

// The four codes of step `step` of one row of `blocks` codes, where that is no multiple of four.
// Beyond the end they are 0, where the products are zeros too.
__device__ __forceinline__ std::uint32_t ragged_codes(const std::uint8_t* row, int step,
                                                      int blocks) {
  const int first = step * kBlocksPerStep;
  std::uint32_t codes = 0;
#pragma unroll 1
  for (int i = 0; i < kBlocksPerStep && first + i < blocks; ++i) {
    codes |= static_cast<std::uint32_t>(row[first + i]) << (8 * i);
  }
  return codes;
}

__device__ __forceinline__ float4 step_scales(std::uint32_t codes) {
  // A byte of `codes` that is 0 or 255 is rare and has its own road.
  constexpr std::uint32_t kOnes = 0x01010101u, kHigh = 0x80808080u;
  if ((((codes - kOnes) & ~codes) | ((~codes - kOnes) & codes)) & kHigh) {
    return make_float4(power_of_two(codes & 255), power_of_two(codes >> 8 & 255),
                       power_of_two(codes >> 16 & 255), power_of_two(codes >> 24));
  }
  const auto place = [](std::uint32_t bits) { return __uint_as_float(bits & 0x7F800000u); };
  return make_float4(place(codes << 23), place(codes << 15), place(codes << 7), place(codes >> 1));
}

}  // namespace deepinfer::kernels::linear_fp8
