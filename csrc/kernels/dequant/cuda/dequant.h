// csrc/kernels/dequant/cuda/dequant.h — the op of op.h on CUDA devices, as a C ABI.
// Launches only: nothing is allocated and nothing waits. Same values as on the CPU.
//
// Pointers are device memory of the current device; weight and out are aligned to 16 bytes.
// out_is_fp32: 0 for bf16, 1 for fp32. stream: a cudaStream_t, null for the default stream.
// status: null, or a device int that the caller has set to 0 and reads after the stream has run:
// 1 is added by OR where a scale is 255, 2 where a weight is NaN. Unlike on the CPU, output is
// written either way; the elements concerned are NaN.
// Returns a cudaError_t: 0 once launched, 1 (invalid value) for a shape, an alignment or a null
// pointer that the contract does not allow.
#pragma once
#include <cstdint>

extern "C" {

int deepinfer_cuda_dequant_fp8_block(const std::uint8_t* weight, const std::uint8_t* scale,
                                     void* out, int out_is_fp32, std::int64_t rows,
                                     std::int64_t cols, std::int64_t block_rows, int* status,
                                     void* stream);

int deepinfer_cuda_dequant_fp4_row(const std::uint8_t* weight, const std::uint8_t* scale, void* out,
                                   int out_is_fp32, std::int64_t rows, std::int64_t cols,
                                   int* status, void* stream);

// The name of a code that the two return; static storage.
const char* deepinfer_cuda_error_name(int code);

}  // extern "C"
