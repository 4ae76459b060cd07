// csrc/kernels/topk/cuda/topk.h — the best entries of rows of scores, as a C ABI.
// Launches only: nothing is allocated and nothing waits; can be captured into a CUDA graph.
//
// Order    By (score descending, index ascending): of equal scores the lower index wins. -0 equals
//          +0. NaN counts as -infinity, which is a score like any other, the lowest.
// Rows     scores fp32 [rows, columns], contiguous, columns % 4 == 0 (of candidate_blocks and of
//          select with `blocks`: % 8). Of row t only the first visible[t] entries count (int32;
//          below 0 is 0, above `columns` is `columns`); what lies behind them is never looked at.
// Results  Whole numbers, the same bits whatever the other rows are and whatever `plan` says.
// Align    scores, blocks and outputs start at multiples of 16 bytes.
// plan     0: chosen by rows, columns and k. Else 100 * shape + cluster: shape 1 has 1024 threads a
//          block, 2 has 512, 3 and 4 have 256 (of select, k up to 512); at most `cluster` blocks,
//          1, 2, 4 or 8, share a row. For measuring.
// Returns a cudaError_t: 0 once launched, 1 (invalid value) for a null pointer, an alignment, a
// size or a plan that is not allowed. No rows: nothing is launched, 0.
#pragma once
#include <cstdint>

extern "C" {

// The min(k, visible[t]) best entries of each row, in ascending order.
//   indices int32 [rows, k]: behind the last one -1.   count int32 [rows]: how many.
//   blocks  null, or int32 [rows, columns / 8]: entry j of row t stands at position
//           8 * blocks[t][j / 8] + j % 8, and indices holds positions. The ids ascend (as
//           candidate_blocks writes them), so that the lower entry is the lower position; those of
//           blocks without a visible entry are not read.
// 1 <= k <= 2048; columns < 2^30.
int deepinfer_cuda_topk_select(const float* scores, const std::int32_t* visible,
                               const std::int32_t* blocks, std::int32_t* indices,
                               std::int32_t* count, std::int64_t rows, std::int64_t columns,
                               std::int64_t k, std::int64_t plan, void* stream);

// The `most` best blocks of 8 entries of each row, in ascending order; all where there are fewer.
// A block's score is that of its best visible entry; the block of the newest entry, visible[t] - 1,
// scores +infinity.
//   blocks  int32 [rows, most]: block ids, behind the last one -1.  count int32 [rows]: how many.
//   entries int32 [rows]: how many visible entries they hold: the `visible` of a select over their
//           compact scores.
// 1 <= most <= 2048; columns < 2^30.
int deepinfer_cuda_topk_candidate_blocks(const float* scores, const std::int32_t* visible,
                                         std::int32_t* blocks, std::int32_t* count,
                                         std::int32_t* entries, std::int64_t rows,
                                         std::int64_t columns, std::int64_t most, std::int64_t plan,
                                         void* stream);

}  // extern "C"
