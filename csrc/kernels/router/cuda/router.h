// csrc/kernels/router/cuda/router.h — experts of each token and rows of each expert, as a C ABI.
// Three kernels in a row; nothing is allocated and nothing waits; can be captured into a graph.
//
//   logit[t][e] = sum over d of x[t][d] * gate[e][d]
//   score       = sqrt(softplus(logit)); softplus(v) = log(1 + exp(v)), and v above 20
//   ids[t]      = the k experts of the largest score + bias, in that order; of equal ones the lower
//   weights[t]  = scores of ids[t] / (their sum + 1e-20) * scaling
//
// Shapes   x bf16 [tokens, width], gate bf16 [experts, width], bias fp32 [experts], image_bias fp32
//          [experts] (of tokens whose `image` is not 0; both may be null), image uint8 [tokens],
//          ids int32 [tokens, k], weights fp32 [tokens, k], all contiguous.
//          width % 8 == 0; k <= experts <= 512; k <= 32; tokens * k < 2^30.
// Rows     offsets int32 [count + 1] and order int32 [tokens * k], for the experts first ..
//          first + count - 1: order[offsets[i]] .. order[offsets[i + 1] - 1] are the rows of expert
//          first + i, ascending; row t * k + s is choice s of token t. Behind the last one: -1.
// Sums     fp32, in an order of d that nothing else changes: within each 640 of d by the matrix
//          instruction in steps of 16, from zero; those sums in ascending order. The sum of the
//          chosen scores goes in the order of choice.
// NaN      A score of NaN ranks as -infinity; a token of NaN logits gets the lowest ids and weights
//          of NaN.
// work     fp32 [parts, tokens, experts]; parts is 1 or ceil(width / 640): one block sums all of d,
//          or one for each 640. The bits are the same.
// Align    x, gate, work, ids, weights, offsets, order: 16 bytes.
// Returns a cudaError_t: 0 once launched, 1 (invalid value) for what is not allowed.
#pragma once
#include <cstdint>

extern "C" {

int deepinfer_cuda_router_route(const void* x, const void* gate, const float* bias,
                                const float* image_bias, const std::uint8_t* image, float* work,
                                std::int32_t* ids, float* weights, std::int32_t* offsets,
                                std::int32_t* order, std::int64_t tokens, std::int64_t width,
                                std::int64_t experts, std::int64_t k, std::int64_t first,
                                std::int64_t count, std::int64_t parts, float scaling,
                                void* stream);

}  // extern "C"
