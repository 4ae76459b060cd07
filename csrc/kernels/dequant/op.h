// csrc/kernels/dequant/op.h — packed weights to bf16 or fp32: the contract of the op.
//
//   fp8_block  out[i, j] = e4m3(weight[i, j])         * 2^(scale[i / block_rows, j / 32] - 127)
//   fp4_row    out[i, j] = e2m1(nibble j of weight i) * 2^(scale[i, j / 32] - 127)
//
// Shapes   fp8: weight [rows, cols], scale [ceil(rows / block_rows), cols / 32]; block_rows is 32
//          for 32 x 32 blocks and 1 for one scale per row. fp4: weight [rows, cols / 2] with the
//          even column in the low nibble, scale [rows, cols / 32]. cols % 32 == 0; either extent
//          may be 0. All C-contiguous; out shares no memory with the inputs.
// Values   Products have at most 4 significand bits: exact in fp32, and in bf16 but for its far
//          subnormals, which round to nearest, ties to even. 2^128 and above is infinity.
//          The kernels feed no subnormal to a float operation, so that flush-to-zero modes and
//          rounding modes change nothing.
// Align    Any address does on the CPU; 64-byte aligned out is fastest. CUDA: see cuda/dequant.h.
// Errors   Scale 255 and weights 0x7F / 0xFF (NaN) are refused before anything is written; the
//          scales are searched first, each in row-major order. Errors are values; nothing throws.
// Threads  Rows are split over at most `threads`; the result does not depend on their number.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dequant/cpu_variant.h"

namespace deepinfer::kernels::dequant {

enum class OutType { kBf16, kFp32 };

struct Fp8Block {
  const std::uint8_t* weight;
  const std::uint8_t* scale;
  void* out;  // std::uint16_t bits of bf16, or float
  OutType out_type;
  std::size_t rows;
  std::size_t cols;
  std::size_t block_rows;  // at least 1
};

struct Fp4Row {
  const std::uint8_t* weight;
  const std::uint8_t* scale;
  void* out;
  OutType out_type;
  std::size_t rows;
  std::size_t cols;
};

struct Status {
  enum class Kind { kOk, kScaleIsNan, kWeightIsNan };
  Kind kind = Kind::kOk;
  std::size_t row = 0;     // of `scale` or of `weight`
  std::size_t column = 0;  // of `scale` (a block index) or of `weight`
  bool ok() const { return kind == Kind::kOk; }
};

// The definition, in plain fp32 arithmetic of one thread. Slow; assumes the default environment.
Status reference(const Fp8Block& op);
Status reference(const Fp4Row& op);

// What this machine can run, best first; "portable" is always the last.
std::span<const Variant* const> variants();
// The one in use: the best, unless use_variant chose another.
const Variant& variant();
// False if this machine has no variant of that name; "auto" is the best.
bool use_variant(const char* name);

Status cpu(const Fp8Block& op, int threads = 1);
Status cpu(const Fp4Row& op, int threads = 1);
// The same with a given variant, whatever is in use.
Status cpu(const Fp8Block& op, int threads, const Variant& with);
Status cpu(const Fp4Row& op, int threads, const Variant& with);

}  // namespace deepinfer::kernels::dequant
