// csrc/kernels/indexer/cuda/indexer.h — scores of index keys against index queries, as a C ABI.
// Launches only: nothing is allocated and nothing waits. Captures into a CUDA graph.
//
// For a query row and an entry j of its sequence, j < visible[row]:
//   score = sum over 32 heads of weights[row, h] * relu(query[row, h] . key[j]) * (32 * 128)^-0.5
// and -infinity for every other place of the output; never -0.
//
// Pointers are device memory of the current device, aligned to 16 bytes.
// query        [rows, 32, 64]  128 E2M1 codes a head; the even channel in the low nibble
// query_scale  [rows, 32, 4]   E8M0, one byte per 32 channels: 2^(byte - 127), byte 1 to 254
// weights      [rows, 32]      fp32, or bf16 with weights_are_bf16 = 1
// pages        [P, page_bytes] page_entries records of 64 bytes of codes, then page_entries records
//                              of 4 scale bytes, then unused bytes; page_entries is a power of two
//                              from 16 to 256, page_bytes a multiple of 16
// block_table  [sequences, table_width]  page of the entries n * page_entries onwards; places past
//                              the visible entries are not read
// sequence     [rows]          row of block_table; a negative one sees nothing
// visible      [rows]          entries that the row sees, at most table_width * page_entries
// candidates   [rows, count]   blocks of 8 entries, each n the entries 8 n to 8 n + 7, in any
// order;
//                              negative: none
//
// Arithmetic, the same for both functions on every device, so that a score depends on its query row
// and its key alone, bit for bit. Per head: d_g, the exact sum of the 32 products of channels 32 g
// to 32 g + 31; x = ((d_0 + d_1) + d_2) + d_3 in fp32; r = max(x, 0). A group of a query head whose
// scale byte is more than 26 below the largest of its head counts as zeros. Heads: with
// h = 8 i + 2 t + k, p_t = sum over i, then over k, of weights[h] * r_h by fused multiply-adds from
// 0; score = ((p_0 + p_1) + (p_2 + p_3)). Powers of two go wherever they are exact, so all this
// holds while no intermediate leaves the normal range of fp32.
//
// Returns a cudaError_t: 0 launched (or nothing to do), 1 (invalid value) for a null or misaligned
// pointer or a size that the above does not allow.
#pragma once
#include <cstdint>

extern "C" {

// scores [rows, positions], positions >= every visible. rows_together, 1 to 8: neighbouring rows
// that one block scores against each key it has loaded; fastest where so many rows share a
// sequence, right for any rows.
int deepinfer_cuda_indexer_dense(const std::uint8_t* query, const std::uint8_t* query_scale,
                                 const void* weights, const std::uint8_t* pages,
                                 const std::int32_t* block_table, const std::int32_t* sequence,
                                 const std::int32_t* visible, float* scores, std::int64_t rows,
                                 std::int64_t sequences, std::int64_t table_width,
                                 std::int64_t page_bytes, std::int64_t page_entries,
                                 std::int64_t positions, std::int64_t weights_are_bf16,
                                 std::int64_t rows_together, void* stream);

// scores [rows, count * 8]: place 8 c + i is entry 8 * candidates[row, c] + i.
int deepinfer_cuda_indexer_candidates(const std::uint8_t* query, const std::uint8_t* query_scale,
                                      const void* weights, const std::uint8_t* pages,
                                      const std::int32_t* block_table, const std::int32_t* sequence,
                                      const std::int32_t* visible, const std::int32_t* candidates,
                                      float* scores, std::int64_t rows, std::int64_t sequences,
                                      std::int64_t table_width, std::int64_t page_bytes,
                                      std::int64_t page_entries, std::int64_t count,
                                      std::int64_t weights_are_bf16, void* stream);

}  // extern "C"
