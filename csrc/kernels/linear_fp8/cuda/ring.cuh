// csrc/kernels/linear_fp8/cuda/ring.cuh — what the kernels of sm_90a share: a ring of stages in
// shared memory, and the warpgroup that fills it.
//
// A stage is 128 columns of a tile's rows of x and of w, as they lie in memory, and their scales as
// fp32. The first producer warp asks the copy engine for the codes; two more feed the scales of x,
// the last those of w. A tile type T says how many rows of x (kRows) and outputs (kOutputs) a tile
// has, and where a stage keeps the four scales of a row (put_x, put_w).
#pragma once
#include <cuda.h>

#include <cstdint>

#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/hopper/mbarrier.cuh"
#include "kernels/linear_fp8/cuda/by_address.cuh"
#include "kernels/linear_fp8/cuda/scales.cuh"
#include "kernels/linear_fp8/cuda/shape.h"

namespace deepinfer::kernels::linear_fp8 {

using namespace hopper;

constexpr int kMaxStages = 16;
constexpr int kWarpgroup = 128;
constexpr int kAtomBytes = 1024;
constexpr int kBand = 16;  // row tiles worked through together: their x stays in the L2 cache

struct Ring {
  int stages;
  int x_rows;       // rows of x that a stage has room for: a multiple of 8, at most the tile's
  int stage_bytes;  // of codes

  __host__ __device__ int x_bytes() const { return x_rows * kStep; }
};

// Every thread with a part in the scales arrives for itself: racecheck does not take one lane's
// word for its warp, and the arrivals of a converged warp are one update of the barrier.
struct Barriers {
  std::uint64_t full[kMaxStages];   // the lane that asks for codes, the three warps of scales
  std::uint64_t empty[kMaxStages];  // every consumer thread
};

// Dynamic shared memory, in this order: slack to align, codes, scales.
template <typename T>
struct Layout {
  // Beside the stages: what reads of absent rows of x run into at the last one.
  static __host__ __device__ int code_bytes(const Ring& ring) {
    const int beyond = (T::kRows - ring.x_rows - T::kOutputs) * kStep;
    return ring.stages * ring.stage_bytes + (beyond > 0 ? beyond : 0);
  }
  static constexpr int kFeeds = T::kRows > 64 ? T::kRows / 64 : 1;  // rows of x per feeding lane
  static __host__ __device__ int bytes(const Ring& ring) {
    return kAtomBytes + code_bytes(ring) + ring.stages * T::kScaleFloats * 4;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A block's shared memory by name.
template <typename T>
struct Shared {
  char* codes;
  float* scales;
  Barriers& barriers;

  __device__ __forceinline__ Shared(char* dynamic, const Ring& ring, Barriers& from)
      : barriers(from) {
    const std::uint32_t skew = shared_address(dynamic) % kAtomBytes;
    codes = dynamic + (skew == 0 ? 0 : kAtomBytes - skew);
    scales = reinterpret_cast<float*>(codes + Layout<T>::code_bytes(ring));
  }
};

// Where in the ring, and in which round: the parity that a full barrier shows when the stage is
// there.
struct Cursor {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A tile's place; tiles are numbered so that blocks at work together share rows and columns.
struct Place {
  int row;
  int group;
  int column;  // within the group
  int output;  // of all
};

template <typename T>
__device__ __forceinline__ Place place(const Shape& shape, int tile) {
  const int columns = column_tiles(shape, T::kOutputs);
  const int rows = (shape.m + T::kRows - 1) / T::kRows;
  const int band = tile / (kBand * columns);
  const int height = min(kBand, rows - band * kBand);
  const int rest = tile - band * kBand * columns;
  const int across = rest / height;
  const int per_group = columns / shape.groups;
  const int group = across / per_group;
  const int column = (across - group * per_group) * T::kOutputs;
  return {(band * kBand + rest - across * height) * T::kRows, group, column,
          group * shape.group_outputs() + column};
}

// By one warp, of which one lane asks: in a branch of one thread the assembler would put every copy
// in a loop over possible addresses. The weights of the first stages are asked for before the
// kernels ahead have ended.
template <typename T>
__device__ __forceinline__ void produce_codes(const Shape& shape, const Ring& ring,
                                              const CUtensorMap* x_map, const CUtensorMap* w_map,
                                              Shared<T>& shared, int tiles) {
  const std::uint64_t keep = evict_normal_policy();
  // One row tile: every weight is read once.
  const std::uint64_t w_policy = shape.m <= T::kRows ? evict_first_policy() : keep;
  const std::uint32_t codes = shared_address(shared.codes);
  const std::uint32_t full = shared_address(shared.barriers.full);
  const std::uint32_t empty = shared_address(shared.barriers.empty);
  const bool asks = elect_one();
  const auto ask_w = [&](int stage, int step, int output) {
    const std::uint32_t barrier = full + 8 * stage;
    const std::uint32_t to = codes + stage * ring.stage_bytes + ring.x_bytes();
    if (asks) {
      mbarrier_expect_at(barrier, ring.stage_bytes);
      tensor_copy_2d_at(to, w_map, step * kStep, output, barrier, w_policy);
    }
  };
  const Place first = place<T>(shape, static_cast<int>(blockIdx.x));
  int early = min(ring.stages, shape.steps());
#pragma unroll 1
  for (int step = 0; step < early; ++step) ask_w(step, step, first.output);
  wait_for_kernels_ahead();
  Cursor at;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const Place where = place<T>(shape, tile);
#pragma unroll 1
    for (int step = 0; step < shape.steps(); ++step, at.next(ring.stages)) {
      if (step >= early) {
        mbarrier_wait_at(empty + 8 * at.stage, at.parity ^ 1);
        ask_w(at.stage, step, where.output);
      }
      const std::uint32_t to = codes + at.stage * ring.stage_bytes;
      if (asks) {
        tensor_copy_3d_at(to, x_map, step * kStep, where.group, where.row, full + 8 * at.stage,
                          keep);
      }
    }
    early = 0;
  }
}

// The scales of x (two warps: a lane for every 64th row) or of w (one warp: a lane for 32
// outputs). Codes are loaded a chunk of steps ahead of their use.
template <typename T, bool kIsX>
struct Feed {
  static constexpr int kEach = kIsX ? Layout<T>::kFeeds : 1;
  static constexpr int kChunk = kEach > 1 ? 2 : 8;
  const Shape& shape;
  int lane;                         // of the warps that feed this operand
  const std::uint8_t* rows[kEach];  // null: no such row
  std::uint32_t codes[kEach][kChunk];

  __device__ __forceinline__ void locate(const Place& where) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t row = kIsX ? where.row + lane + 64 * i : where.output / kBlock + lane;
      const bool inside = kIsX ? lane < T::kRows && row < shape.m
                               : lane < T::kScaleBlocks && row * kBlock < shape.n;
      const std::uint8_t* const base =
          kIsX ? shape.x_scale + (row * shape.groups + where.group) * shape.blocks()
               : shape.w_scale + row * shape.blocks();
      rows[i] = inside ? base : nullptr;
    }
  }
  __device__ __forceinline__ void load(std::uint32_t (&to)[kEach][kChunk], int step) const {
    const int blocks = shape.blocks(), left = shape.steps() - step;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::uint8_t* const from = rows[i] + step * kBlocksPerStep;
#pragma unroll
      for (int c = 0; c < kChunk; ++c) to[i][c] = 0;
      if (rows[i] == nullptr) continue;
      if (blocks % kBlocksPerStep == 0) {
#pragma unroll
        for (int c = 0; c < kChunk; ++c) {
          if (c < left) to[i][c] = __ldg(reinterpret_cast<const std::uint32_t*>(from) + c);
        }
      } else {
#pragma unroll
        for (int c = 0; c < kChunk; ++c) {
          if (c < left) to[i][c] = ragged_codes(rows[i], step + c, blocks);
        }
      }
    }
  }
};

template <typename T, bool kIsX>
__device__ __forceinline__ void produce_scales(const Shape& shape, const Ring& ring,
                                               Shared<T>& shared, int tiles, int lane) {
  using F = Feed<T, kIsX>;
  F feed{shape, lane, {}, {}};
  if constexpr (kIsX) wait_for_kernels_ahead();
  const bool stores = kIsX ? lane < T::kRows : lane < T::kScaleBlocks;
  const std::uint32_t full = shared_address(shared.barriers.full);
  const std::uint32_t empty = shared_address(shared.barriers.empty);
  Cursor at;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    feed.locate(place<T>(shape, tile));
    feed.load(feed.codes, 0);
#pragma unroll 1
    for (int step = 0; step < shape.steps(); step += F::kChunk) {
      std::uint32_t next[F::kEach][F::kChunk];
      feed.load(next, step + F::kChunk);
#pragma unroll
      for (int c = 0; c < F::kChunk; ++c) {
        if (step + c >= shape.steps()) break;
        mbarrier_wait_at(empty + 8 * at.stage, at.parity ^ 1);
        float* const stage = shared.scales + at.stage * T::kScaleFloats;
#pragma unroll
        for (int i = 0; i < F::kEach; ++i) {
          const float4 scales = step_scales(feed.codes[i][c]);
          feed.codes[i][c] = next[i][c];
          if (!stores) continue;
          if constexpr (kIsX) {
            T::put_x(stage, lane + 64 * i, scales);
          } else {
            T::put_w(stage, lane, scales);
          }
        }
        __syncwarp();
        mbarrier_arrive_at(full + 8 * at.stage);
        at.next(ring.stages);
      }
    }
  }
}

// The first warpgroup of every block.
template <typename T>
__device__ __forceinline__ void produce(const Shape& shape, const Ring& ring,
                                        const CUtensorMap* x_map, const CUtensorMap* w_map,
                                        Shared<T>& shared, int tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 32) {
    produce_codes<T>(shape, ring, x_map, w_map, shared, tiles);
  } else if (thread < 96) {
    produce_scales<T, true>(shape, ring, shared, tiles, thread - 32);
  } else {
    produce_scales<T, false>(shape, ring, shared, tiles, thread - 96);
  }
}

// By the whole block, before anything else. Kernels behind this one may start their own.
template <typename T>
__device__ __forceinline__ void open_ring(Barriers& barriers, const CUtensorMap* x_map,
                                          const CUtensorMap* w_map) {
  if (threadIdx.x == 0) {
    prefetch_tensor_map(w_map);
    prefetch_tensor_map(x_map);
#pragma unroll  // a fixed number of barriers: tools size their records by it
    for (int i = 0; i < kMaxStages; ++i) {
      mbarrier_init(&barriers.full[i], 1 + 3 * 32);
      mbarrier_init(&barriers.empty[i], T::kThreads - kWarpgroup);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  allow_dependent_launch();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::linear_fp8
