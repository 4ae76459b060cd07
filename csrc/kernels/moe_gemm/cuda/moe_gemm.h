// csrc/kernels/moe_gemm/cuda/moe_gemm.h — the routed experts of a mixture of experts on CUDA
// devices: MXFP4 weights times FP8 activations, grouped by expert. C ABI.
//
//   w13      h[r, i] = routing[r] * silu(min(g, limit)) * clamp(u, -limit, limit), g and u being
//   the
//            products of row r with gate row i and up row i of its expert, rounded to bf16;
//            h is rounded once, to E4M3 with one power-of-two scale per 32 channels.
//   w2       out[r, n] = product of row r with row n of its expert, rounded to bf16.
//   combine  out[t, d] = bf16(parts[p[t, 0], d] + parts[p[t, 1], d] + ... + shared[t, d]).
//
// Rows are sorted by expert: expert e owns rows offsets[e] .. offsets[e + 1] - 1, offsets[0] = 0,
// offsets[experts] = rows; an expert may have none. The offsets are read on the device only.
//
// Formats    x: E4M3 [rows, k], x_scale: E8M0 [rows, k / 32], value x * 2^(x_scale - 127). No NaN
//            codes (x 0x7F and 0xFF, scales 255). weight: packed, below. Output of w13: E4M3
//            [rows, channels] and E8M0 [rows, channels / 32]: scale 2^ceil(log2(m * fp32(1 / 448)))
//            with m the largest magnitude of the 32 or 1e-4, whichever is larger.
// Packing    A tile is 64 rows of one expert's matrix: for w13 and tile i, its row 16 w + g is gate
//            row 32 i + 8 w + g and its row 16 w + 8 + g is up row 32 i + 8 w + g (w < 4, g < 8);
//            for w2 they are rows 64 i .. 64 i + 63. The matrix is extended by zeros to an even
//            number of tiles and of chunks of 128 columns. weight is
//            [experts, tile pairs, chunks, 2 tiles, 4352] bytes: 4096 bytes of codes, then 256 of
//            scales [64 rows, 4]. Codes: 32-bit word [half][thread][4], thread = 32 w + 4 g + q,
//            word 2 s + r holds row 16 w + 8 r + g, columns 32 (2 half + s) + 4 q + 16 b + c
//            (b < 2, c < 4) of the chunk: magnitude bits at 16 b + 4 c, sign at 8 c + (b ? 3 : 7).
//            folded 1: a scale byte is 8 * (scale - base + 6), base chosen per row so that
//            -5 <= scale - base <= 6, and row_factor is 2^(base - 127). folded 0, for matrices in
//            which a row's scales span more than 11 binades: the byte is the E8M0 scale itself and
//            row_factor is 1. row_factor: fp32 [experts, tiles, 64] in the order of the tiles.
// Sums       The 32 products of one group are added by one matrix instruction, which aligns them to
//            the largest and keeps fewer bits than fp32; group sums times their scale are added in
//            fp32, one FMA each, in ascending order. No other split of K, whatever the number of
//            rows: a row's result does not depend on the other rows of the call, bit for bit.
//            combine adds in fp32 in the order of choice, then the shared expert, and rounds once.
// Sizes      experts 1 .. 512; rows 0 .. 2^31 - 1; k, channels and n multiples of 32.
// tile       0: by the mean number of rows per expert. Tokens per tile otherwise: 32 or 128. It
// changes
//            the time alone.
// Pointers   Device memory of the current device, aligned to 16 bytes; no output overlaps an input.
// Returns    A cudaError_t: 0 once launched, 1 (invalid value) where this contract is not kept.
//            Nothing is allocated and nothing waits; may be captured into a graph.
#pragma once
#include <cstdint>

extern "C" {

int deepinfer_cuda_moe_gemm_w13(const std::uint8_t* x, const std::uint8_t* x_scale,
                                const std::int32_t* offsets, const std::uint8_t* weight,
                                const float* row_factor, const float* routing, std::uint8_t* h,
                                std::uint8_t* h_scale, std::int64_t rows, std::int64_t experts,
                                std::int64_t k, std::int64_t channels, std::int64_t folded,
                                std::int64_t tile, float limit, void* stream);

int deepinfer_cuda_moe_gemm_w2(const std::uint8_t* x, const std::uint8_t* x_scale,
                               const std::int32_t* offsets, const std::uint8_t* weight,
                               const float* row_factor, void* out, std::int64_t rows,
                               std::int64_t experts, std::int64_t k, std::int64_t n,
                               std::int64_t folded, std::int64_t tile, void* stream);

// parts: bf16 [rows, d]; positions: int32 [tokens, choices], the row of a token's choice, or -1
// where another rank has it: such a term is left out. shared: bf16 [tokens, d]. d % 8 == 0, choices
// <= 16.
int deepinfer_cuda_moe_combine(const void* parts, const std::int32_t* positions, const void* shared,
                               void* out, std::int64_t rows, std::int64_t tokens,
                               std::int64_t choices, std::int64_t d, void* stream);

}  // extern "C"
