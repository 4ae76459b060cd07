// csrc/bind/bind_formats.cpp — codes to values and back, one element at a time.
#include "bind/arrays.h"
#include "bind/topics.h"
#include "core/formats/e2m1.h"
#include "core/formats/e4m3.h"
#include "core/formats/e8m0.h"

namespace deepinfer::bind {
namespace {

using namespace nb::literals;

template <float (*Decode)(std::uint8_t)>
void decode(nb::object codes, nb::object out) {
  const Array from = input(codes, "codes", {Kind::kByte});
  const Array to = output(out, "out", {Kind::kFp32});
  require_cpu(from);
  require_cpu(to);
  require_shape(to, from.shape, "the shape of codes");
  require_apart(to, from);
  const auto* code = from.as<const std::uint8_t>();
  for (std::size_t i = 0; i < from.size(); ++i) to.as<float>()[i] = Decode(code[i]);
}

void decode_e2m1(nb::object codes, nb::object out) {
  const Array from = input(codes, "codes", {Kind::kByte});
  require_cpu(from);
  const auto* code = from.as<const std::uint8_t>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (code[i] < 16) continue;
    throw nb::value_error(("codes: " + std::to_string(code[i]) + " at element " +
                           std::to_string(i) + " given, 0..15 needed")
                              .c_str());
  }
  decode<formats::decode_e2m1>(codes, out);
}

template <std::uint8_t (*Encode)(float)>
void encode(nb::object x, nb::object out) {
  const Array from = input(x, "x", {Kind::kFp32});
  const Array to = output(out, "out", {Kind::kByte});
  require_cpu(from);
  require_cpu(to);
  require_shape(to, from.shape, "the shape of x");
  require_apart(to, from);
  const auto* value = from.as<const float>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (value[i] == value[i]) continue;
    throw nb::value_error(("x: NaN at element " + std::to_string(i)).c_str());
  }
  for (std::size_t i = 0; i < from.size(); ++i) to.as<std::uint8_t>()[i] = Encode(value[i]);
}

}  // namespace

void bind_formats(nb::module_& m) {
  m.def("decode_e8m0", &decode<formats::decode_e8m0>, "codes"_a, "out"_a,
        "2^(code - 127) as fp32, exact; code 255 gives NaN.");
  m.def("decode_e4m3", &decode<formats::decode_e4m3>, "codes"_a, "out"_a,
        "E4M3FN as fp32, exact; 0x7F and 0xFF give NaN.");
  m.def("decode_e2m1", &decode_e2m1, "codes"_a, "out"_a,
        "E2M1 as fp32, exact; one code a byte, ValueError if one is above 15.");
  m.def("encode_e4m3", &encode<formats::encode_e4m3>, "x"_a, "out"_a,
        "Nearest E4M3FN, ties to even, magnitudes above 448 become 448; ValueError for NaN.");
  m.def("encode_e2m1", &encode<formats::encode_e2m1>, "x"_a, "out"_a,
        "Nearest E2M1, one code a byte, ties to even, magnitudes above 6 become 6; ValueError for "
        "NaN.");
}

}  // namespace deepinfer::bind
