// csrc/bind/bind_quantize.cpp — the three run-time quantizers over matrices.
#include <type_traits>

#include "bind/arrays.h"
#include "bind/topics.h"
#include "core/formats/quantize_rows.h"

namespace deepinfer::bind {
namespace {

using namespace nb::literals;
using formats::Bf16;
using formats::FiniteCheck;

template <typename Quantizer>
Array activations(nb::handle object) {
  const Array x = input(object, "x", {Kind::kBf16, Kind::kFp32});
  require_cpu(x);
  require_dims(x, 2, "[rows, cols]");
  if (x.shape[1] % Quantizer::kBlock != 0) {
    throw nb::value_error(("x: " + std::to_string(x.shape[1]) + " columns given, a multiple of " +
                           std::to_string(Quantizer::kBlock) + " needed")
                              .c_str());
  }
  return x;
}

void raise_unless_finite(const FiniteCheck& check) {
  if (check.finite) return;
  throw nb::value_error(("x: infinity or NaN at row " + std::to_string(check.row) + ", column " +
                         std::to_string(check.column))
                            .c_str());
}

template <typename Quantizer>
void quantize(nb::object x_object, nb::object codes_object, nb::object scales_object) {
  const Array x = activations<Quantizer>(x_object);
  const Array codes = output(codes_object, "codes", {Kind::kByte});
  const Array scales = output(scales_object, "scales", {Kind::kByte});
  const std::size_t rows = x.shape[0], cols = x.shape[1];
  const bool packed = !std::is_same_v<Quantizer, formats::Fp8With32>;
  require_cpu(codes);
  require_cpu(scales);
  require_shape(codes, {rows, packed ? cols / 2 : cols},
                packed ? "two codes of x a byte" : "one code of x a byte");
  require_shape(scales, {rows, cols / Quantizer::kBlock}, "one scale a block of columns of x");
  require_apart(codes, x);
  require_apart(scales, x);
  require_apart(codes, scales);
  auto* to = codes.as<std::uint8_t>();
  auto* scale = scales.as<std::uint8_t>();
  FiniteCheck check;
  {
    nb::gil_scoped_release release;
    check = x.kind == Kind::kFp32
                ? formats::quantize_rows<Quantizer>(x.as<const float>(), rows, cols, to, scale)
                : formats::quantize_rows<Quantizer>(x.as<const Bf16>(), rows, cols, to, scale);
  }
  raise_unless_finite(check);
}

template <typename Quantizer>
void qdq(nb::object x_object, nb::object out_object) {
  const Array x = activations<Quantizer>(x_object);
  const Array out = output(out_object, "out", {x.kind});
  require_cpu(out);
  require_shape(out, x.shape, "the shape of x");
  if (out.data != x.data) require_apart(out, x);
  const std::size_t rows = x.shape[0], cols = x.shape[1];
  FiniteCheck check;
  {
    nb::gil_scoped_release release;
    check = x.kind == Kind::kFp32
                ? formats::qdq_rows<Quantizer>(x.as<const float>(), rows, cols, out.as<float>())
                : formats::qdq_rows<Quantizer>(x.as<const Bf16>(), rows, cols, out.as<Bf16>());
  }
  raise_unless_finite(check);
}

}  // namespace

void bind_quantize(nb::module_& m) {
  using formats::Fp4With16;
  using formats::Fp4With32;
  using formats::Fp8With32;
  m.def("quantize_fp8_32", &quantize<Fp8With32>, "x"_a, "codes"_a, "scales"_a,
        "E4M3 codes and one E8M0 scale per 32 columns. ValueError for infinity or NaN.");
  m.def("quantize_fp4_32", &quantize<Fp4With32>, "x"_a, "codes"_a, "scales"_a,
        "Packed E2M1 codes and one E8M0 scale per 32 columns. ValueError for infinity or NaN.");
  m.def("quantize_fp4_16", &quantize<Fp4With16>, "x"_a, "codes"_a, "scales"_a,
        "Packed E2M1 codes and one E4M3 scale per 16 columns. ValueError for infinity or NaN.");
  m.def("qdq_fp8_32", &qdq<Fp8With32>, "x"_a, "out"_a,
        "quantize_fp8_32 and back, in the type of x; out may be x.");
  m.def("qdq_fp4_32", &qdq<Fp4With32>, "x"_a, "out"_a,
        "quantize_fp4_32 and back, in the type of x; out may be x.");
  m.def("qdq_fp4_16", &qdq<Fp4With16>, "x"_a, "out"_a,
        "quantize_fp4_16 and back, in the type of x; out may be x.");
}

}  // namespace deepinfer::bind
