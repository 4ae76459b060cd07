// csrc/kernels/moe_gemm/cuda/fragment.cuh — from packed E2M1 codes and scale bytes to the bf16
// fragments of a matrix instruction; nothing is rounded.
//
// The sign, the exponent and the mantissa of an E2M1 code, put at bit 15 and bits 8 to 6 of a half,
// are the bf16 number of its value times 2^-126: code 1, a subnormal of E2M1, becomes a subnormal
// of bf16. So a mask makes a pair of weights, and one multiplication by a power of two scales it.
#pragma once
#include "kernels/moe_gemm/cuda/layout.cuh"

namespace deepinfer::kernels::moe_gemm {

// A scale of a row: the lower or the upper half of a word, a power of two as bf16.
template <int kHalf>
struct Scale {
  std::uint32_t word;

  // Exact: the product is no subnormal. The instruction can read one half twice, so that the factor
  // needs no word of its own.
  __device__ __forceinline__ std::uint32_t times(std::uint32_t pair) const {
    std::uint32_t result;
    if constexpr (kHalf == 0) {
      asm("{\n.reg .b16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %2;\n"
          "mov.b32 both, {low, low};\nmul.rn.bf16x2 %0, %1, both;\n}"
          : "=r"(result)
          : "r"(pair), "r"(word));
    } else {
      asm("{\n.reg .b16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %2;\n"
          "mov.b32 both, {high, high};\nmul.rn.bf16x2 %0, %1, both;\n}"
          : "=r"(result)
          : "r"(pair), "r"(word));
    }
    return result;
  }
};

constexpr std::uint32_t kPair = 0x81C081C0u;    // where a pair's codes have to be
constexpr std::uint32_t kFourth = 0x001B001Bu;  // where the word has those of the fourth pair
// Copies of them 2, 7 and 12 bits up: their mantissas, exponents and signs are in place, and no two
// bits of the sum meet.
constexpr std::uint32_t kSpread = 1u << 2 | 1u << 7 | 1u << 12;

__device__ __forceinline__ std::uint32_t rotate_right(std::uint32_t word, int bits) {
  return __funnelshift_r(word, word, bits);
}

// A word's eight weights, four pairs of neighbours 8 columns apart.
template <int kHalf>
__device__ __forceinline__ void decode_word(std::uint32_t word, const Scale<kHalf>& scale,
                                            std::uint32_t& first, std::uint32_t& second,
                                            std::uint32_t& third, std::uint32_t& fourth) {
  first = scale.times(word & kPair);
  second = scale.times(rotate_right(word, 3) & kPair);
  third = scale.times(rotate_right(word, 6) & kPair);
  fourth = scale.times((word & kFourth) * kSpread & kPair);
}

// The four scales of a row in a chunk, bytes rotated left by 7 bits over the word: the exponents of
// groups 0 and 2 are where bf16 has them, those of 1 and 3 one byte further left.
struct RowScales {
  std::uint32_t even;
  std::uint32_t odd;

  __device__ __forceinline__ void from(std::uint32_t word) {
    constexpr std::uint32_t kExponents = 0x7F807F80u;
    even = word & kExponents;
    odd = rotate_right(word, 8) & kExponents;
  }
};

}  // namespace deepinfer::kernels::moe_gemm
