// csrc/core/formats/quantize_rows.cpp — see quantize_rows.h.
#include "core/formats/quantize_rows.h"

#include <array>
#include <bit>
#include <span>
#include <type_traits>

#include "core/float_environment.h"
#include "core/formats/fp4_packing.h"

namespace deepinfer::formats {
namespace {

float load(float x) { return x; }
float load(Bf16 x) { return to_float(x); }
void store(float value, float* to) { *to = value; }
void store(float value, Bf16* to) { *to = to_bf16(value); }

template <typename Element>
FiniteCheck find_not_finite(const Element* x, std::size_t rows, std::size_t cols) {
  constexpr std::uint32_t kExponent = 0x7F800000u;
  for (std::size_t i = 0; i < rows * cols; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(load(x[i]));
    if ((bits & kExponent) == kExponent) return {false, i / cols, i % cols};
  }
  return {};
}

// Calls `use(index of block, values, codes, scale)` for every block in order.
template <typename Quantizer, typename Element, typename Use>
void for_each_block(const Element* x, std::size_t elements, Use use) {
  constexpr std::size_t kBlock = Quantizer::kBlock;
  std::array<float, kBlock> values;
  std::array<std::uint8_t, kBlock> codes;
  for (std::size_t block = 0; block < elements / kBlock; ++block) {
    for (std::size_t i = 0; i < kBlock; ++i) values[i] = load(x[block * kBlock + i]);
    const std::uint8_t scale = quantize_block<Quantizer>(values, codes);
    use(block, std::span<const std::uint8_t, kBlock>(codes), scale);
  }
}

}  // namespace

template <typename Quantizer, typename Element>
FiniteCheck quantize_rows(const Element* x, std::size_t rows, std::size_t cols, std::uint8_t* codes,
                          std::uint8_t* scales) {
  const DefaultFloatEnvironment environment;
  if (const FiniteCheck check = find_not_finite(x, rows, cols); !check.finite) return check;
  constexpr std::size_t kBlock = Quantizer::kBlock;
  const auto write = [&](std::size_t block, auto block_codes, std::uint8_t scale) {
    scales[block] = scale;
    if constexpr (std::is_same_v<Quantizer, Fp8With32>) {
      for (std::size_t i = 0; i < kBlock; ++i) codes[block * kBlock + i] = block_codes[i];
    } else {
      std::uint8_t* packed = codes + block * (kBlock / 2);
      for (std::size_t i = 0; i < kBlock; i += 2) {
        packed[i / 2] = pack_fp4(block_codes[i], block_codes[i + 1]);
      }
    }
  };
  for_each_block<Quantizer>(x, rows * cols, write);
  return {};
}

template <typename Quantizer, typename Element>
FiniteCheck qdq_rows(const Element* x, std::size_t rows, std::size_t cols, Element* out) {
  const DefaultFloatEnvironment environment;
  if (const FiniteCheck check = find_not_finite(x, rows, cols); !check.finite) return check;
  constexpr std::size_t kBlock = Quantizer::kBlock;
  for_each_block<Quantizer>(x, rows * cols, [&](std::size_t block, auto codes, std::uint8_t scale) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      store(dequantize<Quantizer>(codes[i], scale), &out[block * kBlock + i]);
    }
  });
  return {};
}

#define DEEPINFER_QUANTIZER(Quantizer, Element)                                                    \
  template FiniteCheck quantize_rows<Quantizer, Element>(const Element*, std::size_t, std::size_t, \
                                                         std::uint8_t*, std::uint8_t*);            \
  template FiniteCheck qdq_rows<Quantizer, Element>(const Element*, std::size_t, std::size_t,      \
                                                    Element*);
DEEPINFER_QUANTIZER(Fp8With32, Bf16)
DEEPINFER_QUANTIZER(Fp8With32, float)
DEEPINFER_QUANTIZER(Fp4With32, Bf16)
DEEPINFER_QUANTIZER(Fp4With32, float)
DEEPINFER_QUANTIZER(Fp4With16, Bf16)
DEEPINFER_QUANTIZER(Fp4With16, float)
#undef DEEPINFER_QUANTIZER

}  // namespace deepinfer::formats
