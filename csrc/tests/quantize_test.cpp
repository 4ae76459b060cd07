// csrc/tests/quantize_test.cpp — the three quantizers bit for bit against fp64 definitions: every
// bf16 under every exponent of the block maximum, every finite bf16 as maximum, all midpoints.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "check.h"
#include "core/formats/quantize_rows.h"
#include "definitions.h"

namespace deepinfer::tests {
namespace {

using formats::Bf16;
using formats::Fp4With16;
using formats::Fp4With32;
using formats::Fp8With32;

double as_fp32(double value) { return rounded(value, 23); }

struct Wanted {
  int scale_code;
  double scale;
};

// The product of two fp32 is exact in fp64, so rounding it once is the fp32 product.
template <typename Quantizer>
Wanted wanted_scale(double amax) {
  constexpr bool kFp8 = std::is_same_v<Quantizer, Fp8With32>;
  constexpr bool kE4m3Scale = std::is_same_v<Quantizer, Fp4With16>;
  const double floor = kFp8         ? as_fp32(1e-4)
                       : kE4m3Scale ? std::ldexp(6.0, -9)
                                    : std::ldexp(6.0, -126);
  const double product = as_fp32(std::max(amax, floor) * as_fp32(1.0 / (kFp8 ? 448.0 : 6.0)));
  if (kE4m3Scale) {
    const int code = nearest_e4m3(std::min(product, 448.0));
    return {code, e4m3_value(code)};
  }
  int exponent = 0;
  const double fraction = std::frexp(product, &exponent);  // in [0.5, 1)
  const int code = (fraction == 0.5 ? exponent - 1 : exponent) + 127;
  return {code, e8m0_value(code)};
}

template <typename Quantizer>
int wanted_code(double x, double scale) {
  constexpr bool kFp8 = std::is_same_v<Quantizer, Fp8With32>;
  // fp64 holds enough digits for the quotient of two fp32 to survive the second rounding.
  const double quotient = as_fp32(x / scale);
  return kFp8 ? nearest_e4m3(quotient) : nearest_e2m1(quotient);
}

// Runs whole blocks through both paths and compares codes, scales and values.
template <typename Quantizer, typename Element>
void check_blocks(const std::vector<Element>& x, double (*value_of)(Element)) {
  constexpr std::size_t kBlock = Quantizer::kBlock;
  constexpr bool kFp8 = std::is_same_v<Quantizer, Fp8With32>;
  const std::size_t blocks = x.size() / kBlock;
  std::vector<std::uint8_t> codes(x.size()), scales(blocks);
  std::vector<Element> out(x.size());
  const auto a =
      formats::quantize_rows<Quantizer>(x.data(), blocks, kBlock, codes.data(), scales.data());
  const auto b = formats::qdq_rows<Quantizer>(x.data(), blocks, kBlock, out.data());
  CHECK(a.finite && b.finite, "finite blocks are refused");
  for (std::size_t block = 0; block < blocks; ++block) {
    double amax = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      amax = std::max(amax, std::fabs(value_of(x[block * kBlock + i])));
    }
    const Wanted wanted = wanted_scale<Quantizer>(amax);
    CHECK(scales[block] == wanted.scale_code, "scale for maximum " + std::to_string(amax));
    for (std::size_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      const int code = wanted_code<Quantizer>(value_of(x[i]), wanted.scale);
      const int got = kFp8 ? codes[i] : (codes[i / 2] >> (i % 2 * 4)) & 15;
      CHECK(got == code, "code of " + std::to_string(value_of(x[i])));
      const double value = (kFp8 ? e4m3_value(code) : e2m1_value(code)) * wanted.scale;
      if constexpr (std::is_same_v<Element, float>) {
        CHECK(std::bit_cast<std::uint32_t>(out[i]) == fp32_bits(value), std::to_string(value));
      } else {
        CHECK(out[i].bits == bf16_bits(value), "value of " + std::to_string(value_of(x[i])));
        CHECK(std::fabs(value) >= 0x1p128 || rounded(value, 7) == value, "not exact in bf16");
      }
    }
  }
}

double value_of(Bf16 x) { return bf16_value(x.bits); }
double value_of(float x) { return x; }

// `elements` in blocks that each begin with `maximum`.
template <typename Quantizer, typename Element>
void check_under(Element maximum, const std::vector<Element>& elements) {
  std::vector<Element> x;
  x.reserve(elements.size() * 9 / 8 + Quantizer::kBlock);
  for (const Element element : elements) {
    if (x.size() % Quantizer::kBlock == 0) x.push_back(maximum);
    x.push_back(element);
  }
  while (x.size() % Quantizer::kBlock != 0) x.push_back(Element{});
  check_blocks<Quantizer, Element>(x, value_of);
}

template <typename Quantizer>
void every_bf16_under_every_exponent_of_the_maximum() {
  for (int exponent = 0; exponent < 255; ++exponent) {
    for (const int fraction : {0x00, 0x01, 0x40, 0x7F}) {
      const int maximum = exponent << 7 | fraction;
      std::vector<Bf16> elements;
      for (int bits = 0; bits <= maximum; ++bits) {
        elements.push_back({static_cast<std::uint16_t>(bits)});
        elements.push_back({static_cast<std::uint16_t>(bits | 0x8000)});
      }
      check_under<Quantizer>(Bf16{static_cast<std::uint16_t>(maximum)}, elements);
    }
  }
}

template <typename Quantizer>
void midpoints_under_every_bf16_maximum() {
  constexpr bool kFp8 = std::is_same_v<Quantizer, Fp8With32>;
  for (int bits = 0; bits < 0x7F80; ++bits) {
    const double maximum = bf16_value(bits);
    const double scale = wanted_scale<Quantizer>(maximum).scale;
    std::vector<float> elements;
    for (int code = 0; code < (kFp8 ? 126 : 7); ++code) {
      const double middle = kFp8 ? (e4m3_value(code) + e4m3_value(code + 1)) / 2
                                 : (e2m1_value(code) + e2m1_value(code + 1)) / 2;
      if (kFp8 && (code + bits) % 8 != 0) continue;  // neighbours share the scale: each gets some
      const auto x = static_cast<float>(as_fp32(middle * scale));
      for (const float near : {std::nextafter(x, 0.0f), x, std::nextafter(x, INFINITY)}) {
        if (near <= maximum) elements.insert(elements.end(), {near, -near});
      }
    }
    check_under<Quantizer>(static_cast<float>(maximum), elements);
  }
}

template <typename Quantizer>
void golden(const std::vector<float>& x, const std::vector<double>& wanted) {
  std::vector<float> block(Quantizer::kBlock), out(Quantizer::kBlock);
  std::copy(x.begin(), x.end(), block.begin());
  formats::qdq_rows<Quantizer>(block.data(), 1, Quantizer::kBlock, out.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    CHECK(out[i] == (i < wanted.size() ? wanted[i] : 0.0), "golden " + std::to_string(i));
  }
}

void known_blocks_have_their_known_values() {
  golden<Fp8With32>({450, 4.25, 0x3p-9f}, {448, 4, 0x1p-7});
  golden<Fp8With32>({1e-6f, 1e-9f}, {0x4p-22, 0x1p-30});
  golden<Fp4With32>({6.5, 5, 3, .375}, {6, 4, 3, 0});
  golden<Fp4With16>({7, 2.8125, .5625, 1.4f}, {6.75, 2.25, .5625, 1.125});
}

template <typename Quantizer>
void infinity_and_nan_are_refused_with_their_place() {
  const std::size_t cols = 2 * Quantizer::kBlock;
  for (const float bad : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(3 * cols, 1.0f), out(3 * cols, 7.0f);
    x[2 * cols + 5] = bad;
    const auto check = formats::qdq_rows<Quantizer>(x.data(), 3, cols, out.data());
    CHECK(!check.finite && check.row == 2 && check.column == 5, "place");
    CHECK(std::count(out.begin(), out.end(), 7.0f) == std::ssize(out), "something was written");
  }
}

// FP4-32 has subnormal values at its floor.
template <typename Quantizer>
void flush_to_zero_changes_nothing() {
  std::vector<Bf16> x(Quantizer::kBlock), wanted(Quantizer::kBlock), out(Quantizer::kBlock);
  for (std::size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<std::uint16_t>(1 + 11 * i);
  formats::qdq_rows<Quantizer>(x.data(), 1, x.size(), wanted.data());
  {
    const FlushToZero mode;
    formats::qdq_rows<Quantizer>(x.data(), 1, x.size(), out.data());
  }
  CHECK(out == wanted, "other values when flushing to zero");
}

template <typename Quantizer>
void all_of() {
  flush_to_zero_changes_nothing<Quantizer>();
  every_bf16_under_every_exponent_of_the_maximum<Quantizer>();
  midpoints_under_every_bf16_maximum<Quantizer>();
  infinity_and_nan_are_refused_with_their_place<Quantizer>();
}

}  // namespace
}  // namespace deepinfer::tests

int main() {
  using namespace deepinfer::tests;
  known_blocks_have_their_known_values();
  all_of<deepinfer::formats::Fp8With32>();
  all_of<deepinfer::formats::Fp4With32>();
  all_of<deepinfer::formats::Fp4With16>();
  return summary("quantize");
}
