// csrc/kernels/linear_fp8/cuda/hopper.cuh — the kernel of sm_90a: persistent blocks, each of
// producers and of consumer warpgroups over a ring of stages in shared memory.
//
// A stage is 128 columns of the tile's rows of x and of w, as they lie in memory, and their scales
// as fp32. The first producer warp asks the copy engine for the codes; the others convert scales. A
// consumer warpgroup owns 64 rows. It has one block's products computed (32 columns) while it adds
// the block before, times its scale, to the sums: the tensor cores work under the fp32 arithmetic.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/mbarrier.cuh"
#include "kernels/hopper/tensor_copy_3d.cuh"
#include "kernels/hopper/wgmma_fp8.cuh"
#include "kernels/linear_fp8/cuda/scales.cuh"
#include "kernels/linear_fp8/cuda/shape.h"
#include "kernels/linear_fp8/cuda/store.cuh"

namespace deepinfer::kernels::linear_fp8 {

using namespace hopper;

constexpr int kMaxStages = 16;
constexpr int kWarpgroup = 128;
constexpr int kAtomBytes = 1024;
constexpr int kBand =
    16;  // row tiles that are worked through together: their x stays in the L2 cache

template <int kRowGroups, int kColumns>
struct Tile {
  static constexpr int kRows = 64 * kRowGroups;
  static constexpr int kThreads = kWarpgroup * (kRowGroups + 1);
  static constexpr int kScaleBlocks = (kColumns + kBlock - 1) / kBlock;
  static constexpr int kScaleRows = kRows + kScaleBlocks;  // float4 each
  // Above 168 registers a thread the register file must be dealt out unevenly.
  static constexpr bool kDealRegisters = kRowGroups == 2 && kColumns == 128;
  static constexpr int kMinBlocks = kRowGroups == 1 && kColumns <= 32 ? 2 : 1;
};

struct Ring {
  int stages;
  int x_rows;  // rows of x that a stage has room for: a multiple of 8, at most the tile's

  __host__ __device__ int x_bytes() const { return x_rows * kStep; }
  __host__ __device__ int stage_bytes(int columns) const { return (x_rows + columns) * kStep; }
};

// Dynamic shared memory: slack to align, stages, what the last stage's reads of absent rows of x
// run into, scales.
template <typename T>
__host__ __device__ int shared_codes(const Ring& ring, int columns) {
  const int beyond = (T::kRows - ring.x_rows - columns) * kStep;
  return ring.stages * ring.stage_bytes(columns) + (beyond > 0 ? beyond : 0);
}

template <typename T>
__host__ __device__ int shared_bytes(const Ring& ring, int columns) {
  return kAtomBytes + shared_codes<T>(ring, columns) +
         ring.stages * T::kScaleRows * static_cast<int>(sizeof(float4));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ std::uint64_t evict_normal_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

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
};

template <typename T, int kColumns>
__device__ __forceinline__ Place place(const Shape& shape, int tile) {
  const int columns = column_tiles(shape, kColumns);
  const int rows = (shape.m + T::kRows - 1) / T::kRows;
  const int band = tile / (kBand * columns);
  const int height = min(kBand, rows - band * kBand);
  const int rest = tile - band * kBand * columns;
  const int across = rest / height;
  const int per_group = columns / shape.groups;
  const int group = across / per_group;
  return {(band * kBand + rest - across * height) * T::kRows, group,
          (across - group * per_group) * kColumns};
}

struct Barriers {
  std::uint64_t full[kMaxStages];   // the copy engine, the warps of x's scales, the warp of w's
  std::uint64_t empty[kMaxStages];  // every consumer warp
};

template <typename T, int kColumns>
__device__ __forceinline__ void produce_codes(const Shape& shape, const Ring& ring,
                                              const CUtensorMap* x_map, const CUtensorMap* w_map,
                                              char* codes, Barriers& barriers, int tiles) {
  const std::uint64_t keep = evict_normal_policy();
  // One row tile: every weight is read once.
  const std::uint64_t w_policy = shape.m <= T::kRows ? evict_first_policy() : keep;
  Cursor at;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const Place where = place<T, kColumns>(shape, tile);
    const int output = where.group * shape.group_outputs() + where.column;
    for (int step = 0; step < shape.steps(); ++step, at.next(ring.stages)) {
      char* const stage = codes + at.stage * ring.stage_bytes(kColumns);
      std::uint64_t* const full = &barriers.full[at.stage];
      mbarrier_wait(&barriers.empty[at.stage], at.parity ^ 1);
      mbarrier_arrive_expect(full, static_cast<std::uint32_t>(ring.stage_bytes(kColumns)));
      tensor_copy_2d(stage + ring.x_bytes(), w_map, step * kStep, output, full, w_policy);
      tensor_copy_3d(stage, x_map, step * kStep, where.group, where.row, full, keep);
    }
  }
}

// Codes of kChunk steps from `step` on, of the scale row at `codes` (null: no such row).
template <int kChunk>
__device__ __forceinline__ void load_chunk(std::uint32_t (&to)[kChunk], const std::uint8_t* codes,
                                           int step, const Shape& shape) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const bool inside = codes != nullptr && step + i < shape.steps();
    to[i] = inside ? step_codes(codes, step + i, shape.blocks()) : 0;
  }
}

// The scales of x (two warps, a lane for every 64th row) or of w (one warp, a lane for each 32
// outputs). Codes are read a chunk of steps ahead of their use.
template <typename T, int kColumns, bool kIsX>
__device__ __forceinline__ void produce_scales(const Shape& shape, const Ring& ring, float4* scales,
                                               Barriers& barriers, int tiles, int first) {
  constexpr int kEach = kIsX ? T::kRows / 64 : 1, kChunk = 4 / kEach;
  const bool stores = kIsX || first < T::kScaleBlocks;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Cursor at;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const Place where = place<T, kColumns>(shape, tile);
    const std::uint8_t* rows[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if constexpr (kIsX) {
        const std::int64_t row = where.row + first + 64 * i;
        rows[i] = row < shape.m
                      ? shape.x_scale + (row * shape.groups + where.group) * shape.blocks()
                      : nullptr;
      } else {
        const std::int64_t row =
            (where.group * shape.group_outputs() + where.column) / kBlock + first;
        rows[i] = stores && row * kBlock < shape.n ? shape.w_scale + row * shape.blocks() : nullptr;
      }
    }
    std::uint32_t codes[kEach][kChunk];
#pragma unroll
    for (int i = 0; i < kEach; ++i) load_chunk(codes[i], rows[i], 0, shape);
#pragma unroll 1
    for (int step = 0; step < shape.steps(); step += kChunk) {
      std::uint32_t next[kEach][kChunk];
#pragma unroll
      for (int i = 0; i < kEach; ++i) load_chunk(next[i], rows[i], step + kChunk, shape);
#pragma unroll
      for (int c = 0; c < kChunk; ++c) {
        if (step + c >= shape.steps()) break;
        mbarrier_wait(&barriers.empty[at.stage], at.parity ^ 1);
        float4* const stage = scales + at.stage * T::kScaleRows + (kIsX ? 0 : T::kRows);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          if (stores) stage[first + 64 * i] = step_scales(codes[i][c]);
          codes[i][c] = next[i][c];
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&barriers.full[at.stage]);
        at.next(ring.stages);
      }
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void issue(float (&part)[kColumns / 2], std::uint64_t x,
                                      std::uint64_t w) {
  wgmma_fence();
  wgmma_fp8(part, x, w);
  wgmma_commit();
}

// The factors of one block of products: for the upper and lower row of a lane, by 32 outputs.
template <int kScaleBlocks>
struct Factors {
  float upper[kScaleBlocks], lower[kScaleBlocks];
};

// The factors of blocks `half * 2` and `half * 2 + 1` of a stage.
template <int kScaleBlocks>
__device__ __forceinline__ void load_factors(Factors<kScaleBlocks> (&to)[2], const float4* stage,
                                             int row, int w_row, int half) {
  const auto two = [&](int at) { return reinterpret_cast<const float2*>(stage + at)[half]; };
  const float2 upper = two(row), lower = two(row + 8);
#pragma unroll
  for (int i = 0; i < kScaleBlocks; ++i) {
    const float2 w = two(w_row + i);
    to[0].upper[i] = upper.x * w.x;
    to[0].lower[i] = lower.x * w.x;
    to[1].upper[i] = upper.y * w.y;
    to[1].lower[i] = lower.y * w.y;
  }
}

template <int kColumns, int kScaleBlocks>
__device__ __forceinline__ void promote(float (&sum)[kColumns / 2],
                                        const float (&part)[kColumns / 2],
                                        const Factors<kScaleBlocks>& by) {
  constexpr int kEights = kColumns < kBlock ? kColumns / 8 : kBlock / 8;  // of outputs, per factor
#pragma unroll
  for (int b = 0; b < kScaleBlocks; ++b) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int i = 4 * (b * kEights + e);
      sum[i] = fmaf(part[i], by.upper[b], sum[i]);
      sum[i + 1] = fmaf(part[i + 1], by.upper[b], sum[i + 1]);
      sum[i + 2] = fmaf(part[i + 2], by.lower[b], sum[i + 2]);
      sum[i + 3] = fmaf(part[i + 3], by.lower[b], sum[i + 3]);
    }
  }
}

// One warpgroup's sums over all steps of a tile.
//
// Two sets of partial sums take turns. No wgmma is under way across the back edge of the loop,
// where the compiler would serialize them all: a step's last block is complete when the step ends,
// and is added under the first wgmma of the next step.
template <typename T, int kColumns>
struct Consumer {
  const Ring& ring;
  const char* codes;
  const float4* scales;
  Barriers& barriers;
  int warpgroup;
  int row;  // of this lane within the tile: its first of two
  Cursor at;
  float sum[kColumns / 2];
  float even[kColumns / 2], odd[kColumns / 2];
  Factors<T::kScaleBlocks> by[2];  // [1] outlives its step

  __device__ __forceinline__ void step() {
    mbarrier_wait(&barriers.full[at.stage], at.parity);
    const char* const stage = codes + at.stage * ring.stage_bytes(kColumns);
    const float4* const factors = scales + at.stage * T::kScaleRows;
    const std::uint64_t x = wgmma_descriptor(stage + warpgroup * 64 * kStep);
    const std::uint64_t w = wgmma_descriptor(stage + ring.x_bytes());
    issue<kColumns>(even, x, w);
    promote<kColumns>(sum, odd, by[1]);
    issue<kColumns>(odd, x + 2, w + 2);
    load_factors(by, factors, row, T::kRows, 0);
    wgmma_wait<1>();
    wgmma_pin(even);
    promote<kColumns>(sum, even, by[0]);
    issue<kColumns>(even, x + 4, w + 4);
    wgmma_wait<1>();
    wgmma_pin(odd);
    promote<kColumns>(sum, odd, by[1]);
    issue<kColumns>(odd, x + 6, w + 6);
    load_factors(by, factors, row, T::kRows, 1);
    wgmma_wait<1>();
    wgmma_pin(even);
    promote<kColumns>(sum, even, by[0]);
    wgmma_wait<0>();
    wgmma_pin(odd);
    release();
  }

  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&barriers.empty[at.stage]);
    at.next(ring.stages);
  }

  __device__ __forceinline__ void tile(int steps) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sum[i] = odd[i] = 0.0f;
    by[1] = {};
    for (int i = 0; i < steps; ++i) step();
    promote<kColumns>(sum, odd, by[1]);
  }
};

template <typename T, int kColumns>
__device__ __forceinline__ void consume(const Shape& shape, const Ring& ring, const char* codes,
                                        const float4* scales, Barriers& barriers, int tiles) {
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4,
            lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warpgroup * 64 + warp * 16 + lane / 4;
  Consumer<T, kColumns> consumer{ring, codes, scales, barriers, warpgroup, row};
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const Place where = place<T, kColumns>(shape, tile);
    consumer.tile(shape.steps());
    const int output = where.group * shape.group_outputs() + where.column;
    const std::int64_t first = static_cast<std::int64_t>(where.row + row) * shape.n + output;
    store_rows<kColumns>(consumer.sum, shape.y, shape.y_is_fp32, first, shape.n,
                         shape.m - where.row - row, shape.group_outputs() - where.column, lane);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kRowGroups, int kColumns>
__global__ void __launch_bounds__(Tile<kRowGroups, kColumns>::kThreads,
                                  Tile<kRowGroups, kColumns>::kMinBlocks)
    hopper_kernel(const Shape shape, const Ring ring, const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map, int tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = Tile<kRowGroups, kColumns>;
  extern __shared__ char dynamic[];
  __shared__ Barriers barriers;
  const std::uint32_t skew = shared_address(dynamic) % kAtomBytes;
  char* const codes = dynamic + (skew == 0 ? 0 : kAtomBytes - skew);
  float4* const scales = reinterpret_cast<float4*>(codes + shared_codes<T>(ring, kColumns));
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&x_map);
    prefetch_tensor_map(&w_map);
    for (int i = 0; i < ring.stages; ++i) {
      mbarrier_init(&barriers.full[i], 4);
      mbarrier_init(&barriers.empty[i], 4 * kRowGroups);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warp < 4) {
    if constexpr (T::kDealRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0) {
      if (lane == 0) {
        produce_codes<T, kColumns>(shape, ring, &x_map, &w_map, codes, barriers, tiles);
      }
    } else if (warp < 3) {
      produce_scales<T, kColumns, true>(shape, ring, scales, barriers, tiles, threadIdx.x - 32);
    } else {
      produce_scales<T, kColumns, false>(shape, ring, scales, barriers, tiles, lane);
    }
  } else {
    if constexpr (T::kDealRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<T, kColumns>(shape, ring, codes, scales, barriers, tiles);
  }
#endif
}

}  // namespace deepinfer::kernels::linear_fp8
