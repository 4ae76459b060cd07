// csrc/kernels/quantize_rows/cuda/quantize_rows.h — rows of bf16 to packed rows, as a C ABI.
//
// Formats     E4M3 codes with a UE8M0 byte per 32 channels (FP8-32); E2M1 codes, the even channel
//             in the low nibble, with a UE8M0 byte per 32 channels (FP4-32) or an E4M3 byte per 16
//             (FP4-16). Quantizers are those of engine/ops/quantizers.py, bit for bit; the sign of
//             a zero is kept. Inputs are finite: of other values nothing is promised.
// Norm        weight * x / sqrt(mean(x^2) + eps), rounded once to bf16; order of sums in norm.cuh.
// Rotation    pairs (C - 2F + 2i, C - 2F + 2i + 1) by fp32(position) * freqs[i], cosine and sine
//             rounded from exact ones, products and sums rounded one by one, then to bf16.
//             Positions are not negative.
// Result      Depends on the row alone, bit for bit, not on the other rows of the call.
// Slots       Row t goes to record slots[t] of the cache; below 0 or from `records` on, nothing is
//             written. Slots of one call differ from one another. slots_are_int64: 0 for int32.
// Pointers    Device memory of the current device, aligned to 16 bytes, C-contiguous. Outputs share
//             no memory with inputs but where it is said. No workspace.
// Sizes       Multiples of 8 and of the scale's group; 2F <= C, F a multiple of 4 and at most 32.
//             A count of rows may be 0.
// Returns     a cudaError_t: 0 once launched, 1 (invalid value) for what is not allowed above.
//             Nothing waits; all can be captured in a graph.
#pragma once
#include <cstdint>

extern "C" {

// x bf16 [R, C] -> codes uint8 [R, C], scales uint8 [R, C / 32] (FP8-32). C % 32 == 0.
int deepinfer_cuda_quantize_rows_fp8(const void* x, void* codes, void* scales, std::int64_t rows,
                                     std::int64_t channels, void* stream);

// The same of the normed row; weight bf16 [C]. normed bf16 [R, C], or null. C <= 8192.
int deepinfer_cuda_quantize_rows_normed_fp8(const void* x, const void* weight, void* normed,
                                            void* codes, void* scales, std::int64_t rows,
                                            std::int64_t channels, float eps, void* stream);

// x bf16 [T, H, C], positions int64 [T], freqs fp32 [F] -> out bf16 [T, H, C], rotated. out may be
// x: then the leading channels are not touched. C / 8 and F / 4 divide 128.
int deepinfer_cuda_rows_queries(const void* x, const void* positions, const void* freqs, void* out,
                                std::int64_t tokens, std::int64_t heads, std::int64_t channels,
                                std::int64_t pairs, void* stream);

// The same, then FP4-32: codes uint8 [T, H, C / 2], scales uint8 [T, H, C / 32].
int deepinfer_cuda_rows_index_queries(const void* x, const void* positions, const void* freqs,
                                      void* codes, void* scales, std::int64_t tokens,
                                      std::int64_t heads, std::int64_t channels, std::int64_t pairs,
                                      void* stream);

// x bf16 [T, C], weight bf16 [C] -> norm, rotation, FP8-32 -> cache uint8 [records, C + C / 32]:
// codes, then scales. C <= 512.
int deepinfer_cuda_rows_window(const void* x, const void* weight, const void* positions,
                               const void* freqs, const void* slots, void* cache,
                               std::int64_t tokens, std::int64_t channels, std::int64_t pairs,
                               std::int64_t records, std::int64_t slots_are_int64, float eps,
                               void* stream);

// x bf16 [T, C], weight bf16 [C] -> normed bf16 [T, C] (or null); normed -> rotation, FP4-16 ->
// cache uint8 [records, C / 2 + C / 16]: codes, then scales. C <= 512, C % 64 == 0. normed is
// written for every row, also where the slot says to write none.
int deepinfer_cuda_rows_entry(const void* x, const void* weight, const void* positions,
                              const void* freqs, const void* slots, void* normed, void* cache,
                              std::int64_t tokens, std::int64_t channels, std::int64_t pairs,
                              std::int64_t records, std::int64_t slots_are_int64, float eps,
                              void* stream);

// x bf16 [T, C], weight bf16 [C] -> norm, rotation, FP4-32 -> cache uint8
// [blocks, block_entries * (C / 2 + C / 32)]: the codes of all entries of a block, then their
// scales. Slot s is entry s % block_entries of block s / block_entries. C <= 512, C % 32 == 0,
// block_entries % 4 == 0.
int deepinfer_cuda_rows_index_key(const void* x, const void* weight, const void* positions,
                                  const void* freqs, const void* slots, void* cache,
                                  std::int64_t tokens, std::int64_t channels, std::int64_t pairs,
                                  std::int64_t blocks, std::int64_t block_entries,
                                  std::int64_t slots_are_int64, float eps, void* stream);

}  // extern "C"
