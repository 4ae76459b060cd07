// csrc/core/formats/quantize_rows.h — the run-time quantizers over whole matrices.
// Rows are contiguous and `cols` is a multiple of the quantizer's block. Readable rather than fast:
// this is the definition that every device's kernel is held against.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/formats/bf16.h"
#include "core/formats/quantize.h"

namespace deepinfer::formats {

// Where the first infinity or NaN is, in row-major order. Nothing is written when there is one.
struct FiniteCheck {
  bool finite = true;
  std::size_t row = 0;
  std::size_t column = 0;
};

// Codes and scales. FP8: codes [rows, cols]. FP4: codes packed, [rows, cols / 2], see
// fp4_packing.h. Scales [rows, cols / block].
template <typename Quantizer, typename Element>
FiniteCheck quantize_rows(const Element* x, std::size_t rows, std::size_t cols, std::uint8_t* codes,
                          std::uint8_t* scales);

// Quantize, then dequantize to the same type; `out` may be `x`. Values are exact in bf16.
template <typename Quantizer, typename Element>
FiniteCheck qdq_rows(const Element* x, std::size_t rows, std::size_t cols, Element* out);

}  // namespace deepinfer::formats
