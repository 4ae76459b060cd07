// csrc/kernels/linear_fp8/cuda/linear_fp8.h — linear layers over 32 x 32 blocks of FP8 weights, on
// CUDA devices, as a C ABI. Launches only: nothing is allocated and nothing waits.
//
//   y[m, j] = sum over k of x[m, g * K + k] * w[j, k]     with g = j / (N / groups)
//   x = e4m3(x_code[m, c]) * 2^(x_scale[m, c / 32] - 127)
//   w = e4m3(w_code[j, k]) * 2^(w_scale[j / 32, k / 32] - 127)
//
// Shapes   x_code [M, groups * K], x_scale [M, groups * K / 32], w_code [N, K], w_scale [N / 32, K
// / 32],
//          all bytes; y [M, N] bf16, or fp32 if y_is_fp32. All row-major without gaps. M >= 0; K
//          and N / groups are positive multiples of 32. groups = 1 is the ordinary linear layer;
//          with more, each run of N / groups outputs reads its own run of K inputs.
// Align    Codes and y to 16 bytes, scales to 4.
// Order    One block of 32 products is one sum of the tensor cores (p); then, in fp32 and by
// ascending k:
//          y = fma(p, 2^(x_scale - 127) * 2^(w_scale - 127), y), from 0; rounded once to bf16.
//          There is no split along K. So a row's bits depend on that row and on the weights alone:
//          not on M, on the other rows, or on `plan` (but for the portable plan, see below).
// Range    2^(x_scale + w_scale - 254) in fp32: below its subnormals it is 0, from 2^128 on
// infinity.
//          Codes 0x7F and 0xFF and scale 255 are NaN and give NaN; callers refuse them when they
//          load.
// Plan     0 lets the shape choose. 1 to 6 are the tiles (rows x outputs) 64 x 16, 64 x 32, 64 x
// 64,
//          64 x 128, 128 x 64 and 128 x 128 of Hopper's warpgroup instructions; on sm_90 they all
//          give the same bits. 7 is the portable kernel of mma.sync, the only one on other devices,
//          where the sum p may differ in its last bits.
// Returns a cudaError_t: 0 once launched, 1 (invalid value) for a null pointer, a shape, an
// alignment or a
//          plan that is not allowed.
#pragma once
#include <cstdint>

extern "C" {

int deepinfer_cuda_linear_fp8(const std::uint8_t* x_code, const std::uint8_t* x_scale,
                              const std::uint8_t* w_code, const std::uint8_t* w_scale, void* y,
                              std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t groups,
                              std::int64_t y_is_fp32, std::int64_t plan, void* stream);

}  // extern "C"
