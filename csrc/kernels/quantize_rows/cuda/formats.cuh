// csrc/kernels/quantize_rows/cuda/formats.cuh — the three run-time quantizers, eight channels at a
// time, on values that bf16 holds exactly. The order of operations is that of
// engine/ops/quantizers.py; results are the same bit for bit for finite inputs.
#pragma once
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/quantize_rows/cuda/chunk.cuh"

namespace deepinfer::kernels::rows {

// The byte of the smallest power of two that is not below positive x: 2^(byte - 127).
__device__ inline std::uint32_t power_of_two_above(float x) {
  return (__float_as_uint(x) + 0x7FFFFFu) >> 23;
}

// 2^(127 - byte), exact: the scales below keep the byte within 1 .. 253.
__device__ inline float inverse_of_scale(std::uint32_t byte) {
  return __uint_as_float((254u - byte) << 23);
}

// FP8 with a scale per 32 channels: E4M3 codes and a UE8M0 byte.
__device__ inline std::uint32_t fp8_scale(float largest) {
  return power_of_two_above(fmaxf(largest, 1e-4f) * (1.0f / 448.0f));
}

__device__ inline std::uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

__device__ inline uint2 fp8_codes(const float (&x)[kChunk], std::uint32_t scale) {
  const float inverse = inverse_of_scale(scale);
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = e4m3_pair(x[2 * i] * inverse, x[2 * i + 1] * inverse);
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// The nearest E2M1 code of a magnitude of at most 6, halfway to the even code. Adding 2^22 times
// the power of two below (at least 1) makes the last place of the sum one E2M1 step: the sum is
// rounded to a multiple of it, and its low bits are that multiple. Steps double where the exponent
// grows, which is two codes; the exponent's own low bits add these, up to a constant.
__device__ inline std::uint32_t e2m1_magnitude(float size) {
  const std::uint32_t binade = max(__float_as_uint(size) & 0x7F800000u, 0x3F800000u);
  const std::uint32_t sum = __float_as_uint(__fadd_rn(size, __uint_as_float(binade + (22u << 23))));
  return (sum + (sum >> 22) + 6u) & 7u;
}

__device__ inline std::uint32_t e2m1(float x, float size) {
  return e2m1_magnitude(fminf(size, 6.0f)) | (__float_as_uint(x) >> 28 & 8u);
}

// FP4 with a UE8M0 byte per 32 channels; the even channel is the low nibble.
__device__ inline std::uint32_t fp4_scale(float largest) {
  return power_of_two_above(fmaxf(largest, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
}

// e2m1_magnitude of two channels at once, in bf16: the scale is a power of two, so a channel over
// it is exact there, and 2^6 times the power of two below makes the last place one E2M1 step.
__device__ inline std::uint32_t fp4_pair(std::uint32_t pair, std::uint32_t inverse,
                                         std::uint32_t one, std::uint32_t lift) {
  const std::uint32_t size = pair & 0x7FFF7FFFu;
  const std::uint32_t high = __vmaxu2(pair & 0x7F807F80u, one) + lift;
  std::uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(size), "r"(inverse), "r"(high));
  return ((sum & 0x00070007u) + (sum >> 6 & 0x00060006u) - 0x00020002u) |
         (pair >> 12 & 0x00080008u);
}

__device__ inline std::uint32_t fp4_codes(const uint4& chunk, std::uint32_t scale) {
  constexpr std::uint32_t kBoth = 0x00010001u;
  const std::uint32_t inverse = (254u - scale) * 128u * kBoth, one = scale * 128u * kBoth;
  const std::uint32_t lift =
      (133u - scale) * 128u * kBoth;  // from a binade of x to that of the sum
  const std::uint32_t first =
      fp4_pair(chunk.x, inverse, one, lift) | fp4_pair(chunk.y, inverse, one, lift) << 8;
  const std::uint32_t second =
      fp4_pair(chunk.z, inverse, one, lift) | fp4_pair(chunk.w, inverse, one, lift) << 8;
  // Channels of a pair are 16 bits apart; bring the odd ones behind the even ones.
  return __byte_perm(first | first >> 12, second | second >> 12, 0x5410);
}

// FP4 with an E4M3 scale per 16 channels.
__device__ inline std::uint32_t fp4_e4m3_scale(float largest) {
  const float wanted = fminf(fmaxf(largest, 6.0f * 0x1p-9f) * (1.0f / 6.0f), 448.0f);
  return e4m3_pair(wanted, 0.0f) & 0xFFu;
}

__device__ inline float e4m3_value(std::uint32_t code) {
  const auto two = static_cast<__nv_fp8x2_storage_t>(code);
  return __low2float(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
}

// Quotients are those of a division: the product with the rounded reciprocal, corrected by its
// remainder once. Without that, a few halfway cases land on the other side.
__device__ inline std::uint32_t fp4_e4m3_codes(const float (&x)[kChunk], std::uint32_t scale) {
  const float divisor = e4m3_value(scale), reciprocal = __frcp_rn(divisor);
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float size = fabsf(x[i]), near = __fmul_rn(size, reciprocal);
    const float quotient = __fmaf_rn(__fmaf_rn(-near, divisor, size), reciprocal, near);
    word |= e2m1(x[i], quotient) << (4 * i);
  }
  return word;
}

}  // namespace deepinfer::kernels::rows
