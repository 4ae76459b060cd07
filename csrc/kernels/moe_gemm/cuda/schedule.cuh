// csrc/kernels/moe_gemm/cuda/schedule.cuh — which tiles a block works on: a persistent grid over
// (expert, quad of feature tiles, tile of tokens), from the offsets in device memory. Token tiles
// of the same features follow one another, so that weights come from device memory once.
//
// Rounds of whole tiles would leave blocks idle in the last one. Its tiles are cut along k into
// ranges of stages, one per block: a block that begins a tile hands its sums to the next block,
// which goes on from them, so that every sum has the order that it has in an uncut tile. Nobody
// waits long: beginnings come before the rounds, middles after the first, ends after the last.
#pragma once
#include "kernels/moe_gemm/cuda/layout.cuh"

namespace deepinfer::kernels::moe_gemm {

struct Work {
  int expert;
  int quad;  // of feature tiles
  int first_row;
  int rows;   // at least 1
  int begin;  // first stage along k; above 0: the block before has the sums so far
  int end;    // the stage behind the last; below their number: the next block goes on
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
      : problem_(problem), first_tile_(first_tile), first_row_(first_row) {}

  __device__ bool next(Work& work) {
    // Read again each time: beside the accumulators there is no register for it.
    const int total = *static_cast<const volatile int*>(first_tile_ + kMaxExperts);
    const int rounds = total / static_cast<int>(gridDim.x);
    // 0: a beginning, 1: the first round, 2: a middle, 3 ..: further rounds, then an end.
    while (step_ <= rounds + 2) {
      const int step = step_++;
      const int round = step - (step < 3 ? 1 : 2);
      if (step != 0 && step != 2 && round < rounds) {
        place(work, round * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x));
        work.begin = 0;
        work.end = problem_.stages<Config>();
        return true;
      }
      const Part part = step == 0 ? kBeginning : step == 2 ? kMiddle : kEnd;
      if (rest(work, part, total, rounds)) return true;
    }
    return false;
  }

 private:
  enum Part { kBeginning, kMiddle, kEnd };

  // Blocks that share the last round's `tiles`; a tile has at most three parts.
  __device__ int sharers(int tiles, int rounds) const {
    const int blocks = static_cast<int>(gridDim.x);
    if (problem_.flags == nullptr || rounds < 2) return tiles;
    return 3 * tiles <= blocks ? 3 * tiles : 2 * tiles <= blocks ? 2 * tiles : blocks;
  }

  // This block's share of the last round, if it has such a part.
  __device__ bool rest(Work& work, Part part, int total, int rounds) const {
    const int tiles = total - rounds * static_cast<int>(gridDim.x);
    const int blocks = sharers(tiles, rounds);
    const int block = static_cast<int>(blockIdx.x);
    if (block >= blocks) return false;
    const int stages = problem_.stages<Config>();
    const int from = static_cast<int>(static_cast<std::int64_t>(tiles) * stages * block / blocks);
    const int to =
        static_cast<int>(static_cast<std::int64_t>(tiles) * stages * (block + 1) / blocks);
    if (from == to) return false;
    int tile = from / stages;
    work.begin = from - tile * stages;
    work.end = min(to - tile * stages, stages);
    const Part first = work.begin == 0 ? kBeginning : work.end == stages ? kEnd : kMiddle;
    if (part != first) {
      if (part != kBeginning || to <= (tile + 1) * stages) return false;
      ++tile;
      work.begin = 0;
      work.end = to - tile * stages;
    }
    place(work, rounds * static_cast<int>(gridDim.x) + tile);
    return true;
  }

  __device__ void place(Work& work, int tile) const {
    int low = 0;
    int high = problem_.experts;  // of them, first_tile[low] <= tile < first_tile[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_tile_[middle] <= tile ? low : high) = middle;
    }
    const int token_tiles = (first_tile_[low + 1] - first_tile_[low]) / problem_.quads;
    const int local = tile - first_tile_[low];
    const int start = local % token_tiles * Config::kTokens;
    work.expert = low;
    work.quad = local / token_tiles;
    work.first_row = first_row_[low] + start;
    work.rows = min(Config::kTokens, first_row_[low + 1] - first_row_[low] - start);
  }

  const Problem& problem_;
  const int* first_tile_;
  const int* first_row_;
  int step_ = 0;
};

}  // namespace deepinfer::kernels::moe_gemm
