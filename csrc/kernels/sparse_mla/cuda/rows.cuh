// csrc/kernels/sparse_mla/cuda/rows.cuh — stored rows to bf16 in a few integer instructions. Every
// value comes out times 2^-64, exactly: so the factor of a block of FP8 is a bf16 number for all
// scales up to 2^71. The kernels give the 2^64 back where they scale scores and results anyway.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace deepinfer::kernels::sparse_mla {

constexpr float kRestore = 18446744073709551616.0f;  // 2^64

__device__ __forceinline__ std::uint32_t mul_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Four bytes of (low, high), as the nibbles of `selector` say; its upper half is not looked at. A
// nibble above 7 gives eight copies of the sign of the byte that its low bits name.
__device__ __forceinline__ std::uint32_t look_up(std::uint32_t low, std::uint32_t high,
                                                 std::uint32_t selector) {
  std::uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(selector));
  return d;
}

// Two E4M3 codes in the upper bytes of two halves, as bf16 times 2^-120: their bits put where a
// bf16 has sign, low exponent and high mantissa, subnormal where the code is.
__device__ __forceinline__ std::uint32_t e4m3_bits(std::uint32_t upper) {
  return (upper & 0x80008000u) | (upper >> 4 & 0x07F007F0u);
}

// The bf16 factor, in both halves, of a block of E4M3 with this E8M0 byte: 2^(byte - 127 + 120 -
// 64).
__device__ __forceinline__ std::uint32_t window_factor(std::uint32_t byte) {
  return min(byte + 56, 255u) * 0x00800080u;
}

// Four E4M3 codes to two words of two.
__device__ __forceinline__ void window_values(std::uint32_t codes, std::uint32_t factor,
                                              std::uint32_t* values) {
  values[0] = mul_bf16x2(e4m3_bits(__byte_perm(codes, 0, 0x1404)), factor);
  values[1] = mul_bf16x2(e4m3_bits(__byte_perm(codes, 0, 0x3424)), factor);
}

// For a block of E2M1 with scale s: s 2^-65 and -144 s 2^-65, twice each.
struct EntryFactor {
  std::uint32_t step;
  std::uint32_t base;
};

// Of four E4M3 scales.
__device__ __forceinline__ void entry_factors(std::uint32_t scales, EntryFactor (&factors)[4]) {
  constexpr std::uint32_t kUp = 0x5B005B00u;    // 2^55
  constexpr std::uint32_t kBase = 0xC310C310u;  // -144
  const std::uint32_t pairs[2] = {mul_bf16x2(e4m3_bits(__byte_perm(scales, 0, 0x1404)), kUp),
                                  mul_bf16x2(e4m3_bits(__byte_perm(scales, 0, 0x3424)), kUp)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    factors[i].step = __byte_perm(pairs[i / 2], 0, i % 2 == 0 ? 0x1010 : 0x3232);
    factors[i].base = mul_bf16x2(factors[i].step, kBase);
  }
}

// Eight E2M1 codes to four words of two. A byte look-up gives 16 + 2 v of each code's value v, one
// table for positive codes and one for negative, each 0 for the other's. Under the upper byte of
// 128 that byte is the bf16 number 144 + 2 v, and one fused product takes the 144 away: v has two
// significant bits, a scale four, so that all of it is exact.
__device__ __forceinline__ void entry_values(std::uint32_t codes, EntryFactor factor,
                                             std::uint32_t* values) {
  const std::uint32_t flipped = codes ^ 0x88888888u;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t bytes =
        look_up(0x13121110u, 0x1C181614u, half == 0 ? codes : codes >> 16) |
        look_up(0x0D0E0F10u, 0x04080A0Cu, half == 0 ? flipped : flipped >> 16);
    const std::uint32_t first = __byte_perm(bytes, 0x43434343u, 0x4140);
    const std::uint32_t second = __byte_perm(bytes, 0x43434343u, 0x4342);
    values[2 * half] = fma_bf16x2(first, factor.step, factor.base);
    values[2 * half + 1] = fma_bf16x2(second, factor.step, factor.base);
  }
}

}  // namespace deepinfer::kernels::sparse_mla
