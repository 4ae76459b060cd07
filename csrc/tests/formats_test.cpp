// csrc/tests/formats_test.cpp — every code of every format, and the rounding of the encoders.
#include <cmath>
#include <string>

#include "check.h"
#include "core/formats/bf16.h"
#include "core/formats/e2m1.h"
#include "core/formats/e4m3.h"
#include "core/formats/e8m0.h"
#include "core/formats/fp4_packing.h"
#include "definitions.h"

namespace deepinfer::tests {
namespace {

using std::to_string;

bool same(float value, double wanted) {
  return std::bit_cast<std::uint32_t>(value) == fp32_bits(wanted);
}

void every_code_decodes_to_its_definition() {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    if (code == 255) {
      CHECK(std::isnan(formats::decode_e8m0(byte)) && formats::e8m0_is_nan(byte), "e8m0 255");
    } else {
      CHECK(same(formats::decode_e8m0(byte), e8m0_value(code)), "e8m0 " + to_string(code));
      CHECK(!formats::e8m0_is_nan(byte), "e8m0 " + to_string(code));
    }
    const bool nan = code == 0x7F || code == 0xFF;
    CHECK(formats::e4m3_is_nan(byte) == nan, "e4m3 " + to_string(code));
    if (nan) {
      CHECK(std::isnan(formats::decode_e4m3(byte)), "e4m3 " + to_string(code));
    } else {
      CHECK(same(formats::decode_e4m3(byte), e4m3_value(code)), "e4m3 " + to_string(code));
    }
    CHECK(same(formats::decode_e2m1(byte), e2m1_value(code & 15)), "e2m1 " + to_string(code));
  }
}

void every_code_encodes_back() {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float value = formats::decode_e4m3(byte);
    CHECK(formats::encode_e4m3(value) == byte, "e4m3 " + to_string(code));
    if (code < 16) {
      CHECK(formats::encode_e2m1(formats::decode_e2m1(byte)) == byte, "e2m1 " + to_string(code));
    }
    if (code > 0 && code < 255) {
      const float power = formats::decode_e8m0(byte);
      CHECK(formats::encode_e8m0_ceil(power) == code, "e8m0 " + to_string(code));
      const float below = std::nextafter(power, 0.0f);
      CHECK(code == 1 || formats::encode_e8m0_ceil(below) == code, "e8m0 " + to_string(code));
      const float above = std::nextafter(power, INFINITY);
      CHECK(formats::encode_e8m0_ceil(above) == code + 1, "e8m0 " + to_string(code));
    }
  }
}

void check_encoders(float x) {
  CHECK(formats::encode_e4m3(x) == nearest_e4m3(x), "encode_e4m3 of " + to_string(x));
  CHECK(formats::encode_e2m1(x) == nearest_e2m1(x), "encode_e2m1 of " + to_string(x));
}

void encoders_take_the_nearest_for_every_bf16_and_around_every_midpoint() {
  for (int bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7F80) == 0x7F80) continue;
    check_encoders(formats::to_float({static_cast<std::uint16_t>(bits)}));
  }
  const auto around = [](double value) {
    const auto x = static_cast<float>(value);
    for (const float sign : {1.0f, -1.0f}) {
      check_encoders(sign * x);
      check_encoders(sign * std::nextafter(x, 0.0f));
      check_encoders(sign * std::nextafter(x, INFINITY));
    }
  };
  for (int code = 0; code < 126; ++code) around((e4m3_value(code) + e4m3_value(code + 1)) / 2);
  for (int code = 0; code < 7; ++code) around((e2m1_value(code) + e2m1_value(code + 1)) / 2);
  for (const double value : {448.0, 463.9, 464.0, 480.0, 1e30, 6.0, 6.9, 7.0, 1e-45}) around(value);
  CHECK(formats::encode_e4m3(INFINITY) == 0x7E && formats::encode_e4m3(-INFINITY) == 0xFE, "e4m3");
  CHECK(formats::encode_e2m1(INFINITY) == 7 && formats::encode_e2m1(-INFINITY) == 15, "e2m1");
}

void bf16_holds_every_value_and_rounds_to_even() {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const formats::Bf16 value{static_cast<std::uint16_t>(bits)};
    if ((bits & 0x7F80) == 0x7F80 && (bits & 0x7F) != 0) {
      const formats::Bf16 back = formats::to_bf16(formats::to_float(value));
      CHECK(std::isnan(formats::to_float(back)), "bf16 NaN " + to_string(bits));
      CHECK((back.bits ^ bits) >> 15 == 0, "sign of bf16 NaN " + to_string(bits));
      continue;
    }
    CHECK(formats::to_bf16(formats::to_float(value)) == value, "bf16 " + to_string(bits));
    if ((bits & 0x7F80) == 0x7F80) continue;
    CHECK(same(formats::to_float(value), bf16_value(bits)), "bf16 " + to_string(bits));
    for (const std::uint32_t low : {0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16 | low);
      CHECK(formats::to_bf16(x).bits == bf16_bits(x), "bf16 of " + to_string(x));
    }
  }
}

void packing_puts_even_columns_low() {
  for (int byte = 0; byte < 256; ++byte) {
    const std::uint8_t row[2] = {0, static_cast<std::uint8_t>(byte)};
    const std::uint8_t even = formats::unpack_fp4(row, 2), odd = formats::unpack_fp4(row, 3);
    CHECK(even == byte % 16 && odd == byte / 16, "byte " + to_string(byte));
    CHECK(formats::pack_fp4(even, odd) == byte, "byte " + to_string(byte));
  }
}

}  // namespace
}  // namespace deepinfer::tests

int main() {
  using namespace deepinfer::tests;
  every_code_decodes_to_its_definition();
  every_code_encodes_back();
  encoders_take_the_nearest_for_every_bf16_and_around_every_midpoint();
  bf16_holds_every_value_and_rounds_to_even();
  packing_puts_even_columns_low();
  return summary("formats");
}
