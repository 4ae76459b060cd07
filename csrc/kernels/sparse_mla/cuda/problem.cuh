// csrc/kernels/sparse_mla/cuda/problem.cuh — one call of sparse_mla.h, and the walk over its tiles
// of 64 slots that every role of a kernel takes in the same order.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace deepinfer::kernels::sparse_mla {

constexpr int kHeads = 64;
constexpr int kChannels = 512;
constexpr int kTurned = 64;  // trailing channels that are rotated
constexpr int kWindowBytes = 528;
constexpr int kEntryBytes = 288;
constexpr float kScoreScale = 0.04419417382415922f * 1.4426950408889634f;  // 512^-0.5 log2(e)

struct Problem {
  const __nv_bfloat16* query;
  const std::uint8_t* window;
  const std::int32_t* window_rows;
  const std::uint8_t* entries;
  const std::int32_t* entry_rows;
  const int2* counts;
  const float* sink;
  const float* rotation;
  __nv_bfloat16* out;
  std::int64_t window_pool;
  std::int64_t entry_pool;
  int tokens;
  int window_slots;
  int entry_slots;
};

cudaError_t launch_hopper(const Problem& problem, cudaStream_t stream);
cudaError_t launch_portable(const Problem& problem, cudaStream_t stream);

// A block's tokens, and of each token its tiles of kTile slots: window, then entries. A token that
// sees nothing has one tile without rows. The counts of the next token are read one token ahead.
template <int kTile>
struct Walk {
  int token;
  int tile = 0;
  int tiles = 0;
  int window_tiles = 0;
  int2 count{};
  int2 ahead{};

  __device__ Walk(const Problem& problem, int first) : token(first) {
    if (token < problem.tokens) ahead = problem.counts[token];
    enter(problem);
  }
  __device__ void enter(const Problem& problem) {
    count.x = max(0, min(ahead.x, problem.window_slots));
    count.y = max(0, min(ahead.y, problem.entry_slots));
    tile = 0;
    window_tiles = (count.x + kTile - 1) / kTile;
    tiles = max(1, window_tiles + (count.y + kTile - 1) / kTile);
    const int next = token + static_cast<int>(gridDim.x);
    if (next < problem.tokens) ahead = problem.counts[next];
  }
  __device__ bool done(const Problem& problem) const { return token >= problem.tokens; }
  __device__ void next_token(const Problem& problem) {
    token += static_cast<int>(gridDim.x);
    if (token < problem.tokens) enter(problem);
  }
  __device__ void next_tile(const Problem& problem) {
    if (++tile == tiles) next_token(problem);
  }
  __device__ bool in_window() const { return tile < window_tiles; }

  // The index in slot `row` of this tile, -1 past the count.
  __device__ int index(const Problem& problem, int row) const {
    const bool window = in_window();
    const int slot = (window ? tile : tile - window_tiles) * kTile + row;
    if (slot >= (window ? count.x : count.y)) return -1;
    return window ? __ldg(problem.window_rows +
                          static_cast<std::int64_t>(token) * problem.window_slots + slot)
                  : __ldg(problem.entry_rows +
                          static_cast<std::int64_t>(token) * problem.entry_slots + slot);
  }
};

// The row of an index, null for none.
__device__ __forceinline__ const std::uint8_t* row_address(const Problem& problem, bool window,
                                                           int index) {
  const std::int64_t pool = window ? problem.window_pool : problem.entry_pool;
  if (index < 0 || index >= pool) return nullptr;
  return window ? problem.window + static_cast<std::int64_t>(index) * kWindowBytes
                : problem.entries + static_cast<std::int64_t>(index) * kEntryBytes;
}

}  // namespace deepinfer::kernels::sparse_mla
