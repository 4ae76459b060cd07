// csrc/kernels/engram/cuda/engram.h — n-gram lookup and its injection, as a C ABI.
//
// Pointers    Device memory of the current device unless said, aligned to 16 bytes, C-contiguous.
// Result      Depends on the token alone, bit for bit, not on the other tokens of the call.
// Returns     a cudaError_t: 0 once launched, 1 (invalid value) for what is not allowed here.
//             Nothing waits, no workspace; all can be captured in a graph. T may be 0.
#pragma once
#include <cstdint>

extern "C" {

// ids int64 [N] compressed token ids, dead uint8 [N] (0 or 1), places int64 [T] (each token's place
// in ids), factors int64 [sizes + 1], primes int64 [sizes, heads] -> rows int64 [T, sizes * heads].
// Looking back i = 0 .. sizes from its place, a token mixes id_i * factors[i] by exclusive or; from
// the first dead place, or the first before place 0, every id reads `pad`. After i >= 1 steps,
// head h has row mixed % primes[i - 1][h] plus the primes before it in the order of `primes`.
// Products below 2^63, ids and pad not negative, places below N. sizes * heads <= 32, sizes <= 7.
int deepinfer_cuda_engram_rows(const void* ids, const void* dead, const void* places,
                               const void* factors, const void* primes, void* rows,
                               std::int64_t tokens, std::int64_t count, std::int64_t sizes,
                               std::int64_t heads, std::int64_t pad, void* stream);

// rows int64 [T, n] -> codes uint8 [T, n, width], scales uint8 [T, n, width / 32]: row r of the
// table as it is stored. table, scale: device memory, or page-locked host memory that the device
// maps; row r starts at table + r * row_stride and scale + r * scale_stride (bytes; row_stride and
// table are multiples of 16), so that both may lie in one record. width % 32 == 0, width <= 512.
// A row outside 0 .. table_rows - 1 is not read: its codes and scales become NaN (0x7F, 0xFF).
// blocks: at most so many thread blocks of 128, so that other work keeps its multiprocessors while
// this one waits for the host; 0 for no limit.
int deepinfer_cuda_engram_gather(const void* rows, const void* table, const void* scale,
                                 void* codes, void* scales, std::int64_t tokens,
                                 std::int64_t per_token, std::int64_t width,
                                 std::int64_t table_rows, std::int64_t row_stride,
                                 std::int64_t scale_stride, std::int64_t blocks, void* stream);

// streams bf16 [T, 4, D], kv bf16 [T, 5, D] (a key for each stream, then the value), weight fp32
// [4, D], dead uint8 [T] -> out bf16 [T, 4, D]; out may be streams.
//   dot_k = sum_d(S_kd * w_kd * K_kd) * rsqrt(mean S_k^2 + eps) * rsqrt(mean K_k^2 + eps) * D^-0.5
//   out_k = S_k + sigmoid(copysign(sqrt(max(|dot_k|, 1e-6)), dot_k)) * value;   dead: out_k = S_k
// Sums in fp32: the eight channels of a chunk in ascending order, lanes of a warp whose numbers
// differ in bit 4, 3, 2, 1, 0, then warps in ascending order; chunk c belongs to lane c. D % 8 == 0
// and D <= 8192.
int deepinfer_cuda_engram_inject(const void* streams, const void* kv, const void* weight,
                                 const void* dead, void* out, std::int64_t tokens,
                                 std::int64_t channels, float eps, void* stream);

}  // extern "C"
