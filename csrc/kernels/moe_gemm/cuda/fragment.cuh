// csrc/kernels/moe_gemm/cuda/fragment.cuh — from packed E2M1 codes and scale bytes to the bf16
// fragments of a matrix instruction; nothing is rounded.
//
// The sign, the exponent and the mantissa of an E2M1 code, put at bit 15 and bits 8 to 6 of a half,
// are the bf16 number of its value times 2^-126: code 1, a subnormal of E2M1, becomes a subnormal
// of bf16. So a mask makes a pair of weights, and one multiplication by a power of two scales it.
#pragma once
#include "kernels/moe_gemm/cuda/layout.cuh"

namespace deepinfer::kernels::moe_gemm {

__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high,
                                                       std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
}

// Exact here: the factor is a power of two, and the product is no subnormal.
__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

constexpr std::uint32_t kPair = 0x81C081C0u;    // where a pair's codes have to be
constexpr std::uint32_t kFourth = 0x001B001Bu;  // where the word has those of the fourth pair
// Copies of them 2, 7 and 12 bits up: their mantissas, exponents and signs are in place, and no two
// bits of the sum meet.
constexpr std::uint32_t kSpread = 1u << 2 | 1u << 7 | 1u << 12;

__device__ __forceinline__ std::uint32_t rotate_right(std::uint32_t word, int bits) {
  return __funnelshift_r(word, word, bits);
}

// A word's eight weights, four pairs of neighbours 8 columns apart.
__device__ __forceinline__ void decode_word(std::uint32_t word, std::uint32_t scale,
                                            std::uint32_t& first, std::uint32_t& second,
                                            std::uint32_t& third, std::uint32_t& fourth) {
  first = multiply_bf16x2(word & kPair, scale);
  second = multiply_bf16x2(rotate_right(word, 3) & kPair, scale);
  third = multiply_bf16x2(rotate_right(word, 6) & kPair, scale);
  fourth = multiply_bf16x2((word & kFourth) * kSpread & kPair, scale);
}

// The fragments of two instructions, a[0..3] and a[4..7], from the words of rows g and g + 8.
__device__ __forceinline__ void decode_group(std::uint32_t word0, std::uint32_t word1,
                                             std::uint32_t scale0, std::uint32_t scale1,
                                             std::uint32_t* a) {
  decode_word(word0, scale0, a[0], a[2], a[4], a[6]);
  decode_word(word1, scale1, a[1], a[3], a[5], a[7]);
}

// Byte `group` of the four of a row in a chunk, an exponent with bias 127, as bf16x2.
__device__ __forceinline__ std::uint32_t scale_of(std::uint32_t bytes, int group) {
  return permute_bytes(bytes, 0, 0x4440u + group) * 0x00800080u;
}

}  // namespace deepinfer::kernels::moe_gemm
