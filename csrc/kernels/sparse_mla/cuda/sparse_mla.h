// csrc/kernels/sparse_mla/cuda/sparse_mla.h — attention of 64 heads over gathered latent rows that
// are keys and values at once, as a C ABI. Launches only: nothing is allocated and nothing waits;
// may be captured in a graph. Prefill and decode are the same call.
//
// query [tokens, 64, 512] bf16, rotated. A token sees two lists of rows:
//   window [window_pool, 528]: 512 bytes E4M3, then 16 bytes E8M0, one per 32 channels;
//   entries [entry_pool, 288]: 256 bytes E2M1 (even channel in the low nibble), then 32 bytes E4M3
//   scales, one per 16 channels.
// window_rows [tokens, window_slots] and entry_rows [tokens, entry_slots] are int32 indices of
// rows; an index outside the pool, such as -1, is no row. Of each list only the first counts[t]
// slots are looked at: counts [tokens, 2] int32, window first. A row that is named twice counts
// twice. sink [64] fp32. rotation [tokens, 64] fp32: cosine and sine, in turn, of the 32 angles of
// a token's position. (A table and not an angle: it is the same for all layers, and a sine of a
// large angle that is right needs more registers than are left here.) out [tokens, 64, 512] bf16:
//   z_i = 512^-0.5 query_h . row_i,  m = max(max z, sink_h)
//   o_h = sum_i exp(z_i - m) row_i / (sum_i exp(z_i - m) + exp(sink_h - m)), 0 where no row is seen
//   then channels 448 to 511 turn back: (a cos + b sin, b cos - a sin) of each pair (a, b).
//
// Rows become bf16 exactly if an E8M0 byte is at most 198 (2^71) and no code is NaN; the quantizers
// write no other. The weights exp(...) are rounded to bf16 for the second product, not for their
// sum. Order of sums, whatever the other tokens are: slots in tiles (64 on sm_90, 32 elsewhere),
// window first; within a tile 16 at a time, in the tensor core's order.
//
// All pointers are device memory of the current device, aligned to 16 bytes; tokens, pools and
// slots may be 0. Returns a cudaError_t: 0 once launched, 1 (invalid value) for a negative or too
// large size, a null or a misaligned pointer.
#pragma once
#include <cstdint>

extern "C" {

// The fastest kernel that the current device has.
int deepinfer_cuda_sparse_mla(const void* query, const void* window, const void* window_rows,
                              const void* entries, const void* entry_rows, const void* counts,
                              const void* sink, const void* rotation, void* out,
                              std::int64_t tokens, std::int64_t window_pool,
                              std::int64_t window_slots, std::int64_t entry_pool,
                              std::int64_t entry_slots, void* stream);

// The same by mma.sync, which any device from sm_90 on has.
int deepinfer_cuda_sparse_mla_portable(const void* query, const void* window,
                                       const void* window_rows, const void* entries,
                                       const void* entry_rows, const void* counts, const void* sink,
                                       const void* rotation, void* out, std::int64_t tokens,
                                       std::int64_t window_pool, std::int64_t window_slots,
                                       std::int64_t entry_pool, std::int64_t entry_slots,
                                       void* stream);

}  // extern "C"
