// csrc/core/formats/quantize.h — the three run-time quantizers of activations, one block at a time.
// They are part of the trained model: codes, scales and values are defined bit for bit.
//
//   name        block  floor of amax  scale                          codes
//   FP8-32         32  1e-4           E8M0, amax * fp32(1/448) up    E4M3
//   FP4-32         32  6 * 2^-126     E8M0, amax * fp32(1/6) up      E2M1
//   FP4-16         16  6 * 2^-9       E4M3, amax * fp32(1/6) nearest E2M1
//
// Order: amax, floor, reciprocal product, scale rounding, division by the scale, clamp, rounding;
// the value is code * scale. All of it is fp32. The scale divides; multiplying by its reciprocal
// gives other FP4-16 codes at ties. A block is finite: rows are checked in quantize_rows.h.
// Where the block's maximum is near the top of fp32, code * scale can be infinity (FP8-32 only).
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/formats/e2m1.h"
#include "core/formats/e4m3.h"
#include "core/formats/e8m0.h"

namespace deepinfer::formats {

// By bits: for finite values the order of the magnitudes is the order of their bits.
constexpr float max_magnitude(std::span<const float> block) {
  std::uint32_t largest = 0;
  for (const float x : block) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu);
  }
  return std::bit_cast<float>(largest);
}

struct Fp8With32 {
  static constexpr std::size_t kBlock = 32;
  static constexpr float kFloor = 1e-4f;
  static constexpr std::uint8_t encode_scale(float amax) {
    return encode_e8m0_ceil(std::max(amax, kFloor) * (1.0f / kE4m3Max));
  }
  static constexpr float decode_scale(std::uint8_t scale) { return decode_e8m0(scale); }
  static constexpr std::uint8_t encode(float scaled) {
    return encode_e4m3(std::clamp(scaled, -kE4m3Max, kE4m3Max));
  }
  static constexpr float decode(std::uint8_t code) { return decode_e4m3(code); }
};

struct Fp4With32 {
  static constexpr std::size_t kBlock = 32;
  static constexpr float kFloor = 6.0f * 0x1p-126f;
  static constexpr std::uint8_t encode_scale(float amax) {
    return encode_e8m0_ceil(std::max(amax, kFloor) * (1.0f / kE2m1Max));
  }
  static constexpr float decode_scale(std::uint8_t scale) { return decode_e8m0(scale); }
  static constexpr std::uint8_t encode(float scaled) {
    return encode_e2m1(std::clamp(scaled, -kE2m1Max, kE2m1Max));
  }
  static constexpr float decode(std::uint8_t code) { return decode_e2m1(code); }
};

struct Fp4With16 {
  static constexpr std::size_t kBlock = 16;
  static constexpr float kFloor = 6.0f * 0x1p-9f;
  static constexpr std::uint8_t encode_scale(float amax) {
    return encode_e4m3(std::min(std::max(amax, kFloor) * (1.0f / kE2m1Max), kE4m3Max));
  }
  static constexpr float decode_scale(std::uint8_t scale) { return decode_e4m3(scale); }
  static constexpr std::uint8_t encode(float scaled) {
    return encode_e2m1(std::clamp(scaled, -kE2m1Max, kE2m1Max));
  }
  static constexpr float decode(std::uint8_t code) { return decode_e2m1(code); }
};

// Writes one code per element (E2M1 codes unpacked, one a byte) and returns the scale's code.
template <typename Quantizer>
constexpr std::uint8_t quantize_block(std::span<const float, Quantizer::kBlock> block,
                                      std::span<std::uint8_t, Quantizer::kBlock> codes) {
  const std::uint8_t scale = Quantizer::encode_scale(max_magnitude(block));
  const float divisor = Quantizer::decode_scale(scale);
  for (std::size_t i = 0; i < Quantizer::kBlock; ++i) {
    codes[i] = Quantizer::encode(block[i] / divisor);
  }
  return scale;
}

template <typename Quantizer>
constexpr float dequantize(std::uint8_t code, std::uint8_t scale) {
  return Quantizer::decode(code) * Quantizer::decode_scale(scale);
}

}  // namespace deepinfer::formats
