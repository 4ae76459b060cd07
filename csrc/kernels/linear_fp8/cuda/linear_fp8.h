// csrc/kernels/linear_fp8/cuda/linear_fp8.h — linear layers over 32 x 32 blocks of FP8 weights, on
// CUDA devices, as a C ABI. Launches only: nothing is allocated and nothing waits.
//
//   y[m, j] = sum over k of x[m, g * K + k] * w[j, k]     with g = j / (N / groups)
//   x = e4m3(x_code[m, c]) * 2^(x_scale[m, c / 32] - 127)
//   w = e4m3(w_code[j, k]) * 2^(w_scale[j / 32, k / 32] - 127)
//
// Shapes   x_code [M, groups * K], x_scale [M, groups * K / 32], w_code [N, K], w_scale
//          [N / 32, K / 32], all bytes; y [M, N] bf16, or fp32 if y_is_fp32. All row-major without
//          gaps. M >= 0; K and N / groups are positive multiples of 32. groups = 1 is the ordinary
//          layer; with more, each run of N / groups outputs reads its own run of K inputs.
// Align    Codes and y to 16 bytes, scales to 4.
// Order    A block of 32 products is one sum p of the tensor cores. Then, in fp32, by ascending k
//          and from 0: y = fma(p, 2^(x_scale - 127) * 2^(w_scale - 127), y), rounded once to bf16.
//          K is never split. So the bits of a row of y depend on that row of x and on the weights:
//          not on M, not on other rows, not on `plan` (but for the portable one).
// Range    The product of scales is fp32: 0 below its subnormals, infinite from 2^128 on. Codes
//          0x7F and 0xFF and scale 255 are NaN and give NaN; callers refuse them when they load.
// Plan     0 lets the shape choose. 1 to 5 are tiles (rows x outputs) for Hopper's warpgroup
//          instructions: 16 x 64, 32 x 64, 64 x 64, 64 x 128, 128 x 128; all give the same bits.
//          6 is the portable kernel of mma.sync, the only one on devices other than sm_90; its p
//          may differ in the last bits.
// Stream   On sm_90 the kernel may start before the kernel ahead has ended, where that one allows
//          it, and reads w_code and w_scale at once: no kernel that may still run writes them.
//          Everything else waits for the kernels ahead.
// Returns  a cudaError_t: 0 once launched, 1 (invalid value) for a null pointer, a shape, an
//          alignment or a plan that is not allowed.
#pragma once
#include <cstdint>

extern "C" {

int deepinfer_cuda_linear_fp8(const std::uint8_t* x_code, const std::uint8_t* x_scale,
                              const std::uint8_t* w_code, const std::uint8_t* w_scale, void* y,
                              std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t groups,
                              std::int64_t y_is_fp32, std::int64_t plan, void* stream);

}  // extern "C"
