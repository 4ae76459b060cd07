// csrc/kernels/dequant/cpu_variant.h — the kernels that each instruction set provides.
// Included by files built with their own instruction sets, so no inline function and no template
// may live here: the linker could keep the copy that uses instructions a machine lacks.
#pragma once
#include <cstddef>
#include <cstdint>

namespace deepinfer::kernels::dequant {

inline constexpr std::size_t kBlockCols = 32;  // columns that share one scale

// Over `blocks` consecutive blocks of 32 columns, one scale each; codes and scales are free of
// NaN. `stream` writes past the caches: for outputs far above L3, where `out` is aligned for it.
struct Variant {
  const char* name;
  void (*fp8_to_bf16)(const std::uint8_t* codes, const std::uint8_t* scales, std::uint16_t* out,
                      std::size_t blocks, bool stream);
  void (*fp8_to_fp32)(const std::uint8_t* codes, const std::uint8_t* scales, float* out,
                      std::size_t blocks, bool stream);
  void (*fp4_to_bf16)(const std::uint8_t* codes, const std::uint8_t* scales, std::uint16_t* out,
                      std::size_t blocks, bool stream);
  void (*fp4_to_fp32)(const std::uint8_t* codes, const std::uint8_t* scales, float* out,
                      std::size_t blocks, bool stream);
  bool (*has_e4m3_nan)(const std::uint8_t* codes, std::size_t count);
  // To be called by a thread after its last call with `stream`: other threads then see its output.
  // Not part of each call: it costs as much as hundreds of blocks.
  void (*finish_stream)();
};

extern const Variant kPortable;
extern const Variant kAvx2;    // only where DEEPINFER_X86 is defined
extern const Variant kAvx512;  // likewise; needs AVX512F and AVX512BW

// Scales for which every product of the format is zero or a normal bf16: there a scale is no more
// than an addition to the exponent. Real checkpoints are inside.
// FP8: 2^-9 * 2^(10 - 127) = 2^-126 and 448 * 2^(246 - 127) < 2^128.
inline constexpr std::uint8_t kFp8LowestScale = 10;
inline constexpr std::uint8_t kFp8HighestScale = 246;
// FP4: 0.5 * 2^(2 - 127) = 2^-126 and 6 * 2^(252 - 127) < 2^128.
inline constexpr std::uint8_t kFp4LowestScale = 2;
inline constexpr std::uint8_t kFp4HighestScale = 252;

// One block with any scale, subnormals and infinities included.
void fp8_block_to_bf16(const std::uint8_t* codes, std::uint8_t scale, std::uint16_t* out);
void fp8_block_to_fp32(const std::uint8_t* codes, std::uint8_t scale, float* out);
void fp4_block_to_bf16(const std::uint8_t* codes, std::uint8_t scale, std::uint16_t* out);
void fp4_block_to_fp32(const std::uint8_t* codes, std::uint8_t scale, float* out);

}  // namespace deepinfer::kernels::dequant
