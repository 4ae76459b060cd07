// csrc/kernels/dequant/reference.cpp — the op as its contract reads, for tests and for reading.
#include "core/formats/bf16.h"
#include "core/formats/e2m1.h"
#include "core/formats/e4m3.h"
#include "core/formats/e8m0.h"
#include "core/formats/fp4_packing.h"
#include "kernels/dequant/op.h"

namespace deepinfer::kernels::dequant {
namespace {

using Kind = Status::Kind;

void store(float value, void* out, OutType type, std::size_t index) {
  if (type == OutType::kFp32) {
    static_cast<float*>(out)[index] = value;
  } else {
    static_cast<std::uint16_t*>(out)[index] = formats::to_bf16(value).bits;
  }
}

Status find_nan_scale(const std::uint8_t* scale, std::size_t rows, std::size_t cols) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t col = 0; col < cols; ++col) {
      if (formats::e8m0_is_nan(scale[row * cols + col])) return {Kind::kScaleIsNan, row, col};
    }
  }
  return {};
}

}  // namespace

Status reference(const Fp8Block& op) {
  const std::size_t scale_rows = (op.rows + op.block_rows - 1) / op.block_rows;
  const std::size_t scale_cols = op.cols / kBlockCols;
  if (const Status s = find_nan_scale(op.scale, scale_rows, scale_cols); !s.ok()) return s;
  for (std::size_t row = 0; row < op.rows; ++row) {
    for (std::size_t col = 0; col < op.cols; ++col) {
      if (formats::e4m3_is_nan(op.weight[row * op.cols + col])) {
        return {Kind::kWeightIsNan, row, col};
      }
    }
  }
  for (std::size_t row = 0; row < op.rows; ++row) {
    for (std::size_t col = 0; col < op.cols; ++col) {
      const std::size_t index = row * op.cols + col;
      const std::uint8_t scale = op.scale[row / op.block_rows * scale_cols + col / kBlockCols];
      const float value = formats::decode_e4m3(op.weight[index]) * formats::decode_e8m0(scale);
      store(value, op.out, op.out_type, index);
    }
  }
  return {};
}

Status reference(const Fp4Row& op) {
  const std::size_t scale_cols = op.cols / kBlockCols;
  if (const Status s = find_nan_scale(op.scale, op.rows, scale_cols); !s.ok()) return s;
  for (std::size_t row = 0; row < op.rows; ++row) {
    const std::span<const std::uint8_t> codes(op.weight + row * op.cols / 2, op.cols / 2);
    for (std::size_t col = 0; col < op.cols; ++col) {
      const std::uint8_t scale = op.scale[row * scale_cols + col / kBlockCols];
      const float value =
          formats::decode_e2m1(formats::unpack_fp4(codes, col)) * formats::decode_e8m0(scale);
      store(value, op.out, op.out_type, row * op.cols + col);
    }
  }
  return {};
}

}  // namespace deepinfer::kernels::dequant
