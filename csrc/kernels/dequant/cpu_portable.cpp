// csrc/kernels/dequant/cpu_portable.cpp — plain C++ that compilers vectorize; any machine.
// Also the exact path of all variants for the scales at either end of the exponent range.
#include <bit>
#include <cstring>

#include "kernels/dequant/cpu_variant.h"

namespace deepinfer::kernels::dequant {
namespace {

// The fp32 bits of significand * 2^exponent for a significand below 16. Never rounds: the smallest
// product, 2^-136, is 13 places above the last place of fp32.
std::uint32_t fp32_bits(std::uint32_t sign, std::uint32_t significand, int exponent) {
  if (significand == 0) return sign;
  const int width = std::bit_width(significand);
  const int top = exponent + width - 1;  // exponent of the leading bit
  if (top > 127) return sign | 0x7F800000u;
  if (top < -126) return sign | (significand << (exponent + 149));
  const std::uint32_t fraction = (significand << (24 - width)) & 0x007FFFFFu;
  return sign | static_cast<std::uint32_t>(top + 127) << 23 | fraction;
}

std::uint32_t fp8_bits(std::uint8_t code, std::uint8_t scale) {
  const std::uint32_t field = (code >> 3) & 0xFu;
  const std::uint32_t significand = (code & 0x7u) | (field != 0 ? 8u : 0u);
  const int exponent = static_cast<int>(field != 0 ? field : 1u) - 10 + scale - 127;
  return fp32_bits((code & 0x80u) << 24, significand, exponent);
}

std::uint32_t fp4_bits(std::uint32_t code, std::uint8_t scale) {
  const std::uint32_t field = (code >> 1) & 0x3u;
  const std::uint32_t significand = (code & 0x1u) | (field != 0 ? 2u : 0u);
  const int exponent = static_cast<int>(field != 0 ? field : 1u) - 2 + scale - 127;
  return fp32_bits((code & 0x8u) << 28, significand, exponent);
}

// Nearest bf16, ties to even; there is no NaN here.
std::uint16_t bf16_of(std::uint32_t bits) {
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Scales inside kFp8LowestScale .. kFp8HighestScale: bits of fp32, in a form without branches,
// which compilers would not vectorize.
std::uint32_t fp8_normal_bits(std::uint32_t code, std::uint32_t scale) {
  const std::uint32_t sign = (code & 0x80u) << 24;
  const std::uint32_t normal = ((code & 0x7Fu) << 20) + ((scale - 7) << 23);
  // A subnormal code is its fraction as a number, times 2^-9: here a product of normal fp32.
  const float unit = std::bit_cast<float>((scale - 9) << 23);
  const float product = static_cast<float>(static_cast<std::int32_t>(code & 0x7u)) * unit;
  const std::uint32_t is_subnormal = 0u - static_cast<std::uint32_t>((code & 0x78u) == 0);
  return sign | (std::bit_cast<std::uint32_t>(product) & is_subnormal) | (normal & ~is_subnormal);
}

// Scales inside kFp4LowestScale .. kFp4HighestScale: the bits of bf16.
std::uint16_t fp4_normal_bits(std::uint32_t code, std::uint32_t scale) {
  const std::uint32_t sign = (code & 0x8u) << 12;
  const std::uint32_t magnitude = code & 0x7u;
  const std::uint32_t half = (scale - 1) << 7;  // 0.5 * scale
  const std::uint32_t subnormal = magnitude == 0 ? 0 : half;
  return static_cast<std::uint16_t>(sign | (magnitude < 2 ? subnormal : (magnitude << 6) + half));
}

void store(std::uint32_t bits, float* out) { *out = std::bit_cast<float>(bits); }

void fp8_to_bf16(const std::uint8_t* __restrict codes, const std::uint8_t* scales,
                 std::uint16_t* __restrict out, std::size_t blocks, bool) {
  for (std::size_t b = 0; b < blocks; ++b, codes += kBlockCols, out += kBlockCols) {
    const std::uint8_t scale = scales[b];
    if (scale < kFp8LowestScale || scale > kFp8HighestScale) {
      fp8_block_to_bf16(codes, scale, out);
      continue;
    }
    for (std::size_t i = 0; i < kBlockCols; ++i) {
      out[i] = static_cast<std::uint16_t>(fp8_normal_bits(codes[i], scale) >> 16);
    }
  }
}

void fp8_to_fp32(const std::uint8_t* __restrict codes, const std::uint8_t* scales,
                 float* __restrict out, std::size_t blocks, bool) {
  for (std::size_t b = 0; b < blocks; ++b, codes += kBlockCols, out += kBlockCols) {
    const std::uint8_t scale = scales[b];
    if (scale < kFp8LowestScale || scale > kFp8HighestScale) {
      fp8_block_to_fp32(codes, scale, out);
      continue;
    }
    for (std::size_t i = 0; i < kBlockCols; ++i) store(fp8_normal_bits(codes[i], scale), &out[i]);
  }
}

void fp4_to_bf16(const std::uint8_t* __restrict codes, const std::uint8_t* scales,
                 std::uint16_t* __restrict out, std::size_t blocks, bool) {
  for (std::size_t b = 0; b < blocks; ++b, codes += kBlockCols / 2, out += kBlockCols) {
    const std::uint8_t scale = scales[b];
    if (scale < kFp4LowestScale || scale > kFp4HighestScale) {
      fp4_block_to_bf16(codes, scale, out);
      continue;
    }
    for (std::size_t i = 0; i < kBlockCols / 2; ++i) {
      out[2 * i] = fp4_normal_bits(codes[i] & 0xFu, scale);
      out[2 * i + 1] = fp4_normal_bits(codes[i] >> 4, scale);
    }
  }
}

void fp4_to_fp32(const std::uint8_t* __restrict codes, const std::uint8_t* scales,
                 float* __restrict out, std::size_t blocks, bool) {
  for (std::size_t b = 0; b < blocks; ++b, codes += kBlockCols / 2, out += kBlockCols) {
    const std::uint8_t scale = scales[b];
    if (scale < kFp4LowestScale || scale > kFp4HighestScale) {
      fp4_block_to_fp32(codes, scale, out);
      continue;
    }
    for (std::size_t i = 0; i < kBlockCols / 2; ++i) {
      store(std::uint32_t{fp4_normal_bits(codes[i] & 0xFu, scale)} << 16, &out[2 * i]);
      store(std::uint32_t{fp4_normal_bits(codes[i] >> 4, scale)} << 16, &out[2 * i + 1]);
    }
  }
}

bool has_e4m3_nan(const std::uint8_t* codes, std::size_t count) {
  std::uint8_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    found = static_cast<std::uint8_t>(found | ((codes[i] | 0x80u) == 0xFFu ? 1u : 0u));
  }
  return found != 0;
}

}  // namespace

void fp8_block_to_bf16(const std::uint8_t* codes, std::uint8_t scale, std::uint16_t* out) {
  for (std::size_t i = 0; i < kBlockCols; ++i) out[i] = bf16_of(fp8_bits(codes[i], scale));
}

void fp8_block_to_fp32(const std::uint8_t* codes, std::uint8_t scale, float* out) {
  for (std::size_t i = 0; i < kBlockCols; ++i) store(fp8_bits(codes[i], scale), &out[i]);
}

void fp4_block_to_bf16(const std::uint8_t* codes, std::uint8_t scale, std::uint16_t* out) {
  for (std::size_t i = 0; i < kBlockCols / 2; ++i) {
    out[2 * i] = bf16_of(fp4_bits(codes[i] & 0xFu, scale));
    out[2 * i + 1] = bf16_of(fp4_bits(codes[i] >> 4, scale));
  }
}

void fp4_block_to_fp32(const std::uint8_t* codes, std::uint8_t scale, float* out) {
  for (std::size_t i = 0; i < kBlockCols / 2; ++i) {
    store(fp4_bits(codes[i] & 0xFu, scale), &out[2 * i]);
    store(fp4_bits(codes[i] >> 4, scale), &out[2 * i + 1]);
  }
}

const Variant kPortable = {"portable",  fp8_to_bf16,  fp8_to_fp32, fp4_to_bf16,
                           fp4_to_fp32, has_e4m3_nan, [] {}};

}  // namespace deepinfer::kernels::dequant
