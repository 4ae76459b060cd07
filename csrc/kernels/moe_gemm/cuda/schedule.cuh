// csrc/kernels/moe_gemm/cuda/schedule.cuh — which tiles a block works on: a persistent grid over
// (expert, quad of feature tiles, tile of tokens), from the offsets in device memory. Token tiles
// of the same features follow one another, so that weights come from device memory once.
#pragma once
#include "kernels/moe_gemm/cuda/layout.cuh"

namespace deepinfer::kernels::moe_gemm {

struct Work {
  int expert;
  int quad;  // of feature tiles
  int first_row;
  int rows;  // at least 1
};

// Fills the first tile and the first row of every expert; the whole block, then it has to meet.
template <typename Config>
__device__ void plan(const Problem& problem, int* first_tile, int* first_row) {
  for (int e = threadIdx.x; e <= problem.experts; e += blockDim.x)
    first_row[e] = problem.offsets[e];
  if (threadIdx.x >= 32) return;
  int total = 0;
  for (int base = 0; base < problem.experts; base += 32) {
    const int e = base + static_cast<int>(threadIdx.x);
    int tiles = 0;
    if (e < problem.experts) {
      const int rows = problem.offsets[e + 1] - problem.offsets[e];
      tiles = (rows + Config::kTokens - 1) / Config::kTokens * problem.quads;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(0xFFFFFFFFu, tiles, step);
      if (static_cast<int>(threadIdx.x) >= step) tiles += before;
    }
    if (e < problem.experts) first_tile[e + 1] = total + tiles;
    total += __shfl_sync(0xFFFFFFFFu, tiles, 31);
  }
  if (threadIdx.x != 0) return;
  first_tile[0] = 0;
  first_tile[kMaxExperts] = total;
}

template <typename Config>
class Schedule {
 public:
  __device__ Schedule(const Problem& problem, const int* first_tile, const int* first_row)
      : first_tile_(first_tile),
        first_row_(first_row),
        quads_(problem.quads),
        tile_(static_cast<int>(blockIdx.x)) {}

  __device__ bool next(Work& work) {
    // Read again each time: beside the accumulators there is no register for it.
    if (tile_ >= *static_cast<const volatile int*>(first_tile_ + kMaxExperts)) return false;
    while (tile_ >= first_tile_[expert_ + 1]) ++expert_;
    const int token_tiles = (first_tile_[expert_ + 1] - first_tile_[expert_]) / quads_;
    const int local = tile_ - first_tile_[expert_];
    const int start = local % token_tiles * Config::kTokens;
    work.expert = expert_;
    work.quad = local / token_tiles;
    work.first_row = first_row_[expert_] + start;
    work.rows = min(Config::kTokens, first_row_[expert_ + 1] - first_row_[expert_] - start);
    tile_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  const int* first_tile_;
  const int* first_row_;
  int quads_;
  int tile_;
  int expert_ = 0;
};

}  // namespace deepinfer::kernels::moe_gemm
