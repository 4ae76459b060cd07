// csrc/kernels/moe_gemm/cuda/moe_gemm.h — the routed experts of a mixture of experts on CUDA
// devices: MXFP4 weights times FP8 activations, grouped by expert. C ABI.
//
//   w13      h[r, i] = routing[r] * silu(min(g, limit)) * clamp(u, -limit, limit), g and u being
//            the products of row r with gate row i and up row i of its expert, rounded to bf16;
//            h is rounded to E4M3 with one power-of-two scale per 32 channels.
//   w2       out[r, n] = product of row r with row n of its expert, rounded to bf16.
//   combine  out[t, d] = bf16(parts[p[t, 0], d] + parts[p[t, 1], d] + ... + shared[t, d]).
//
// Rows are sorted by expert: expert e owns rows offsets[e] .. offsets[e + 1] - 1, offsets[0] = 0,
// offsets[experts] = rows; an expert may have none. The offsets are read on the device only.
//
// Formats    Activations, x and h: bf16 [rows, columns]. What the model hands in and what w13 gives
//            are E4M3 numbers times a power of two per 32 columns, which bf16 holds exactly (down
//            to 2^-133; dequant_fp8_block makes them of codes and scales). Any other bf16 numbers
//            do. The scale of 32 channels of h is 2^ceil(log2(m * fp32(1 / 448))) with m the
//            largest magnitude of the 32 or 1e-4, whichever is larger. weight: packed, below.
// Packing    A tile is 64 rows of one expert's matrix: for w13 and tile i, its row 16 w + g is gate
//            row 32 i + 8 w + g and its row 16 w + 8 + g is up row 32 i + 8 w + g (w < 4, g < 8);
//            for w2 they are rows 64 i .. 64 i + 63. The matrix is extended by zeros to an even
//            number of tiles and of chunks of 128 columns. weight is
//            [experts, tile pairs, chunks, 2 tiles, 4352] bytes: 4096 bytes of codes, then 256 of
//            scales, a word per row in the order [w, g, r], r 1 being row 16 w + 8 + g. Codes:
//            32-bit word [half][thread][4], thread = 32 w + 4 g + q, word 2 s + r holds row 16 w +
//            8 r + g, columns 32 (2 half + s) + 8 p + 2 q + h (p < 4, h < 2) of the chunk. Sign,
//            two bits of exponent and mantissa of a code are bits 15, 8, 7, 6 of half h, rotated
//            left by 3 p over the word, for p < 3, and 3, 1, 0, 4 of half h for p = 3: see
//            fragment.cuh. A word of scales is the four bytes 240 + scale - top of the chunk's
//            groups, the first in the lowest, rotated left by 7; top is the row's largest scale,
//            and row_factor is 2^(top - 127 + 13): what is multiplied are weights times 2^-13 and
//            less, so that a power of two that undoes the bias of the codes is a bf16 number. Exact
//            if top is at most 240 and scales are at least top - 112. row_factor: fp32 [experts,
//            tiles, 64] in the order of the tiles.
// Sums       Products of bf16 numbers, added by the matrix unit in fp32 accumulators by ascending
//            columns, 16 at a time, from the first to the last. No other split of K, whatever the
//            number of rows: a row's result does not depend on the other rows of the call, bit for
//            bit. combine adds in fp32 in the order of choice, then the shared expert, and rounds
//            once.
// Sizes      experts 1 .. 512; rows 0 .. 2^31 - 1; k, channels and n multiples of 32.
// sums, flags  fp32 [blocks, 32768] and int32 [blocks, 4], or null. Room for sums that one block of
//            the grid hands to the next, where the last round of tiles does not fill the device: a
//            tile is then cut along k, and its sums go on in the same order, bit for bit as
//            without. Used if blocks is at least the number of multiprocessors. Flags are 0 before
//            the first call and after every call; calls that run at once need their own.
// tile       0: by the mean number of rows per expert. Tokens per tile otherwise: 64 or 128. It
//            changes the time alone.
// Pointers   Device memory of the current device, aligned to 16 bytes; no output overlaps an input.
// Returns    A cudaError_t: 0 once launched, 1 (invalid value) where this contract is not kept.
//            Nothing is allocated and nothing waits; may be captured into a graph.
#pragma once
#include <cstdint>

extern "C" {

int deepinfer_cuda_moe_gemm_w13(const void* x, const std::int32_t* offsets,
                                const std::uint8_t* weight, const float* row_factor,
                                const float* routing, void* h, float* sums, std::int32_t* flags,
                                std::int64_t rows, std::int64_t experts, std::int64_t k,
                                std::int64_t channels, std::int64_t blocks, std::int64_t tile,
                                float limit, void* stream);

int deepinfer_cuda_moe_gemm_w2(const void* x, const std::int32_t* offsets,
                               const std::uint8_t* weight, const float* row_factor, void* out,
                               float* sums, std::int32_t* flags, std::int64_t rows,
                               std::int64_t experts, std::int64_t k, std::int64_t n,
                               std::int64_t blocks, std::int64_t tile, void* stream);

// parts: bf16 [rows, d]; positions: int32 [tokens, choices], the row of a token's choice, or -1
// where another rank has it: such a term is left out. shared: bf16 [tokens, d]. d % 8 == 0, choices
// <= 16.
int deepinfer_cuda_moe_combine(const void* parts, const std::int32_t* positions, const void* shared,
                               void* out, std::int64_t rows, std::int64_t tokens,
                               std::int64_t choices, std::int64_t d, void* stream);

}  // extern "C"
