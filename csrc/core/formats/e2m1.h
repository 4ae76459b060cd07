// csrc/core/formats/e2m1.h — E2M1, the four-bit float: sign, 2 exponent bits, 1 fraction bit.
// Codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign, so code 8 is -0. Every code is
// valid.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

namespace deepinfer::formats {

inline constexpr float kE2m1Max = 6.0f;
inline constexpr std::array<float, 8> kE2m1Magnitudes = {0.0f, 0.5f, 1.0f, 1.5f,
                                                         2.0f, 3.0f, 4.0f, 6.0f};

// Exact; only the low four bits of `code` count.
constexpr float decode_e2m1(std::uint8_t code) {
  const float magnitude = kE2m1Magnitudes[code & 7u];
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

// Nearest E2M1 of `value`, ties to the even code, magnitudes above 6 become 6; the sign of zero is
// kept. `value` is not NaN: the format has no code for it.
constexpr std::uint8_t encode_e2m1(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 28) & 8u);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  // Midpoints of neighbours. A tie goes down where the lower code is even: <= there, < elsewhere.
  std::uint8_t code = 7;
  if (magnitude <= 0.25f) {
    code = 0;
  } else if (magnitude < 0.75f) {
    code = 1;
  } else if (magnitude <= 1.25f) {
    code = 2;
  } else if (magnitude < 1.75f) {
    code = 3;
  } else if (magnitude <= 2.5f) {
    code = 4;
  } else if (magnitude < 3.5f) {
    code = 5;
  } else if (magnitude <= 5.0f) {
    code = 6;
  }
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace deepinfer::formats
