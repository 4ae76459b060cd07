// csrc/kernels/mhc/cuda/mhc.h — hyper-connections of four streams of width 5120, fused, as a C ABI.
//
// One site of the model, for each of T tokens:
//
//   S'_k  = bf16(post_k x + sum_j comb[j, k] S_j)        boundary only; a site has S' = S
//   m     = (fn . flat(S')) / sqrt(mean(flat(S')^2) + norm_eps)
//   next_pre, next_post, next_comb = sigmoid + eps, 2 sigmoid, Sinkhorn(softmax + eps) of m
//   c     = bf16(sum_k pre_k S'_k)                       with the mix of one site earlier
//   y     = bf16(weight c / sqrt(mean(c^2) + norm_eps))
//   codes, code_scales = E4M3 codes of y and one UE8M0 scale per 32 channels
//
// Shapes   x, y bf16 [T, 5120]; streams, new_streams bf16 [T, 4, 5120]; pre, post fp32 [T, 4] and
//          comb fp32 [T, 4, 4], likewise next_*; base fp32 [24], scale fp32 [3], weight bf16
//          [5120]; codes uint8 [T, 5120], code_scales uint8 [T, 160]; partial fp32 [T, 16, 32],
//          scratch. All C-contiguous. new_streams may be streams itself (a token is read before it
//          is written); no other two may share memory.
// fn       bf16 [16, 10, 8, 3, 32, 8], repacked from fp32 [24, 20480]: every weight as the sum of
//          two bf16 numbers (hi, then the rest), in the order in which lanes take them. Slice s,
//          warp w hold channels 320 s + 32 w + [0, 32). Step 2 k + h is stream k; lane 4 g + t
//          holds channels 8 t + 4 h + [0, 4) of them, as {row a: 0, 1}, {row b: 0, 1},
//          {row a: 2, 3}, {row b: 2, 3}. Block 0: hi of rows g, g + 8; block 1: the rest of
//          those; block 2: hi of row 16 + g, the rest of row 16 + g.
// Values   fp32 sums of exact bf16 products; products of streams with the two parts of fn differ
//          from fp32 weights by at most 2^-17 relative. Scales and codes are those of y itself:
//          largest of 32 (at least 1e-4) times fp32(1/448), rounded up to a power of two; the
//          quotient, rounded to nearest even, at most 448.
// Order    Fixed and the same for every T and position, so that a token's result does not depend
//          on its neighbours: per warp over steps 0 .. 7 (hi and rest apart, then added), then
//          warps 0 .. 9 of a slice, then slices 0 .. 15. Squares: a lane's 32, four lanes as
//          (0 + 1) + (2 + 3), warps, slices. Expand and collapse: x first, then streams 0 .. 3.
// Align    Every pointer to 16 bytes.
// Errors   cudaErrorInvalidValue for a null or misaligned pointer, tokens < 0 or > 2^20, or
//          iterations < 1. tokens == 0 launches nothing.
// Launches two kernels, the second waiting on the device for the first; nothing is allocated and
// nothing waits on the host.
#pragma once
#include <cstdint>

extern "C" {

int deepinfer_cuda_mhc_boundary(const void* x, const void* streams, const float* post,
                                const float* comb, const float* pre, const void* fn,
                                const float* base, const float* scale, const void* weight,
                                void* new_streams, float* next_pre, float* next_post,
                                float* next_comb, void* y, std::uint8_t* codes,
                                std::uint8_t* code_scales, float* partial, std::int64_t tokens,
                                std::int64_t iterations, float eps, float norm_eps, void* stream);

// Without an expand: the first site, or one whose streams something else has changed.
int deepinfer_cuda_mhc_site(const void* streams, const float* pre, const void* fn,
                            const float* base, const float* scale, const void* weight,
                            float* next_pre, float* next_post, float* next_comb, void* y,
                            std::uint8_t* codes, std::uint8_t* code_scales, float* partial,
                            std::int64_t tokens, std::int64_t iterations, float eps, float norm_eps,
                            void* stream);

}  // extern "C"
