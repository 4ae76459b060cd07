// csrc/core/formats/e8m0.h — E8M0, the power-of-two scale of one block, as one byte.
// Byte b is 2^(b - 127); 255 is NaN. Byte 0 is 2^-127, which fp32 can only hold as a subnormal.
#pragma once
#include <bit>
#include <cstdint>

namespace deepinfer::formats {

inline constexpr int kE8m0Bias = 127;
inline constexpr std::uint8_t kE8m0Nan = 0xFF;

constexpr bool e8m0_is_nan(std::uint8_t code) { return code == kE8m0Nan; }

// Exact for every code; code 255 gives a quiet NaN.
constexpr float decode_e8m0(std::uint8_t code) {
  if (code == kE8m0Nan) return std::bit_cast<float>(0x7FC00000u);
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

// Code of the smallest power of two that is not below `value`. `value` is a normal positive fp32
// of at most 2^127: the callers' floors and the finite range of their inputs see to both.
constexpr std::uint8_t encode_e8m0_ceil(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t has_fraction = (bits & 0x007FFFFFu) != 0 ? 1 : 0;
  return static_cast<std::uint8_t>((bits >> 23) + has_fraction);
}

}  // namespace deepinfer::formats
