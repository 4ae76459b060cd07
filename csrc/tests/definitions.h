// csrc/tests/definitions.h — the formats by plain fp64 arithmetic: what the tests compare with.
// Nothing here comes from csrc/core; every value of the formats is exact in fp64.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace deepinfer::tests {

inline double e8m0_value(int code) { return std::ldexp(1.0, code - 127); }  // not for 255

inline double e4m3_value(int code) {  // not for the NaN codes
  const int exponent = (code >> 3) & 15;
  const double fraction = (code & 7) / 8.0;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1.0 + fraction, exponent - 7);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

inline double e2m1_value(int code) {
  constexpr std::array<double, 8> kValues = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kValues[static_cast<std::size_t>(code & 7)]
                         : kValues[static_cast<std::size_t>(code & 7)];
}

inline double bf16_value(int bits) {  // finite ones
  const int exponent = (bits >> 7) & 255;
  const double fraction = (bits & 127) / 128.0;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -126) : std::ldexp(1.0 + fraction, exponent - 127);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Nearest value with `fraction_bits` and the exponents of fp32, ties to even; infinity from 2^128.
inline double rounded(double value, int fraction_bits) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), -126);
  const double step = std::ldexp(1.0, exponent - fraction_bits);
  const double nearest = std::nearbyint(value / step) * step;
  if (std::fabs(nearest) < std::ldexp(1.0, 128)) return nearest;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

inline std::uint32_t fp32_bits(double value) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(rounded(value, 23)));
}

inline std::uint16_t bf16_bits(double value) {
  return static_cast<std::uint16_t>(
      std::bit_cast<std::uint32_t>(static_cast<float>(rounded(value, 7))) >> 16);
}

// Index of the nearest of ascending `values`, ties to the even index; beyond the last is the last.
inline int nearest_index(std::span<const double> values, double magnitude) {
  std::size_t below = 0, above = values.size() - 1;
  if (magnitude >= values[above]) return static_cast<int>(above);
  while (above - below > 1) {
    const std::size_t middle = (below + above) / 2;
    (values[middle] <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - values[below], up = values[above] - magnitude;
  if (down != up) return static_cast<int>(down < up ? below : above);
  return static_cast<int>(below % 2 == 0 ? below : above);
}

template <std::size_t kCount>
std::array<double, kCount> magnitudes(double (*value)(int)) {
  std::array<double, kCount> all;
  for (std::size_t code = 0; code < kCount; ++code) all[code] = value(static_cast<int>(code));
  return all;
}

inline int nearest_e4m3(double value) {  // code, saturating
  static const auto kMagnitudes = magnitudes<127>(e4m3_value);
  return nearest_index(kMagnitudes, std::fabs(value)) | (std::signbit(value) ? 128 : 0);
}

inline int nearest_e2m1(double value) {
  static const auto kMagnitudes = magnitudes<8>(e2m1_value);
  return nearest_index(kMagnitudes, std::fabs(value)) | (std::signbit(value) ? 8 : 0);
}

}  // namespace deepinfer::tests
