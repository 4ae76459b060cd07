// csrc/core/formats/bf16.h — bfloat16 as its 16 bits: the upper half of an fp32.
#pragma once
#include <bit>
#include <cstdint>

namespace deepinfer::formats {

// A type of its own, so that bits are never taken for a number.
struct Bf16 {
  std::uint16_t bits;
  friend constexpr bool operator==(Bf16, Bf16) = default;
};
static_assert(sizeof(Bf16) == 2);

constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even, subnormals included; what rounds past the largest finite bf16
// becomes infinity. A NaN stays a NaN of the same sign, made quiet.
constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  }
  const std::uint32_t even = (bits >> 16) & 1u;
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + even) >> 16)};
}

}  // namespace deepinfer::formats
