// csrc/core/formats/e4m3.h — E4M3FN: sign, 4 exponent bits (bias 7), 3 fraction bits.
// Largest value 448, smallest 2^-9; no infinities; 0x7F and 0xFF are NaN.
#pragma once
#include <bit>
#include <cstdint>

namespace deepinfer::formats {

inline constexpr float kE4m3Max = 448.0f;

constexpr bool e4m3_is_nan(std::uint8_t code) { return (code & 0x7Fu) == 0x7Fu; }

// Exact for every code; the NaN codes give a quiet NaN.
constexpr float decode_e4m3(std::uint8_t code) {
  const bool negative = (code & 0x80u) != 0;
  const int exponent = (code >> 3) & 0xF;
  const int fraction = code & 0x7;
  if (e4m3_is_nan(code)) return std::bit_cast<float>(negative ? 0xFFC00000u : 0x7FC00000u);
  // Subnormals count in steps of 2^-9 = 1/512; a normal is (8 + fraction) steps of 2^(exponent-10).
  const float magnitude = exponent == 0 ? static_cast<float>(fraction) / 512.0f
                                        : static_cast<float>((8 + fraction) << exponent) / 1024.0f;
  return negative ? -magnitude : magnitude;
}

// Nearest E4M3 of `value`, ties to the even code; magnitudes above 448 (infinity too) become 448.
// NaN becomes 0x7F with the sign of `value`.
constexpr std::uint8_t encode_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | 0x7Fu);
  if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3Max)) {
    return static_cast<std::uint8_t>(sign | 0x7Eu);
  }
  constexpr std::uint32_t kSmallestNormal = 0x3C800000u;  // 2^-6
  if (magnitude < kSmallestNormal) {
    // At 2^14 the spacing of fp32 is 2^-9, that of the subnormals: the addition does the rounding,
    // and a carry out of the fraction lands on code 8, which is 2^-6.
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xFu));
  }
  // Keep 3 of 23 fraction bits: add half of the last kept place, less one when that place is even.
  const std::uint32_t even = (magnitude >> 20) & 1u;
  const std::uint32_t rounded = (magnitude + 0x0007FFFFu + even) >> 20;
  return static_cast<std::uint8_t>(sign | (rounded - ((127u - 7u) << 3)));
}

}  // namespace deepinfer::formats
