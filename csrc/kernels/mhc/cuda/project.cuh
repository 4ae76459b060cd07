// csrc/kernels/mhc/cuda/project.cuh — the kernel that reads the streams: expand, collapse, and each
// slice's share of the projection.
//
// A block owns 320 channels of all four streams and keeps their part of fn in registers, so that fn
// is read once per block however many tokens there are; tokens pass by in tiles of eight. A lane's
// 16 bytes of a stream are four values of two MMA steps for the token of its column: streams go
// from memory through registers into the MMA and out again without being shared between lanes.
//
// Ten warps work on 32 channels each and never meet: a warp's loads run kStages - 1 tiles ahead
// through its own part of shared memory. An eleventh warp fetches the coefficients of the tiles and
// adds up the sums of the ten.
#pragma once
#include <cuda_runtime.h>

#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/cp_async.cuh"
#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/hopper/mbarrier.cuh"
#include "kernels/hopper/mma_sync.cuh"
#include "kernels/mhc/cuda/layout.cuh"

namespace deepinfer::kernels::mhc {

constexpr int kStages = 4;            // tiles of streams on their way, one being worked on
constexpr int kSlots = 4;             // tiles of sums that wait to be added up
constexpr int kSteps = 2 * kStreams;  // MMA steps of 16 per group of 32 channels
constexpr int kBlocks = 3;            // of 16 rows: hi, rest, and eight of each
constexpr int kProjectThreads = kThreads + 32;
// A token's sums of one warp; the lanes of an MMA result then write to 32 different banks.
constexpr int kSumStride = 36;

struct Project {
  const std::uint8_t* x;        // bf16 [T, 5120]
  const std::uint8_t* streams;  // bf16 [T, 4, 5120]
  const float* post;
  const float* comb;
  const float* pre;
  const uint4* fn;
  std::uint8_t* new_streams;
  std::uint8_t* collapsed;  // bf16 [T, 5120]
  float* partial;
  int tokens;
};

struct Coefficients {
  float comb[kTile][kStreams * kStreams];
  float post[kTile][kStreams];
  float pre[kTile][kStreams];
};

struct ProjectShared {
  uint4 values[kStages][kStreams + 1][kThreads];  // streams, then x
  Coefficients coefficients[kStages];
  float sums[kSlots][kWarps][kTile][kSumStride];
  std::uint64_t coefficients_full[kStages];
  std::uint64_t sums_full[kSlots];
  std::uint64_t sums_empty[kSlots];
};

// The tiles of a block: `first`, then every `step`-th before `end`.
struct Tiles {
  int first;
  int step;
  int end;
};

// Starts the copies of this thread's 16 bytes of each stream and of x.
template <bool kExpand>
__device__ __forceinline__ void fetch(const Project& op, ProjectShared& shared, int stage,
                                      std::int64_t token, std::int64_t offset) {
  const std::uint8_t* streams = op.streams + token * (2 * kStreams * kHidden) + offset;
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    hopper::cp_async_16(&shared.values[stage][k][threadIdx.x], streams + k * 2 * kHidden);
  }
  if constexpr (kExpand) {
    hopper::cp_async_16(&shared.values[stage][kStreams][threadIdx.x],
                        op.x + token * (2 * kHidden) + offset);
  }
}

// One thread: starts the copies of a tile's coefficients.
template <bool kExpand>
__device__ __forceinline__ void fetch_coefficients(const Project& op, ProjectShared& shared,
                                                   int stage, int tile, std::uint64_t policy) {
  Coefficients& to = shared.coefficients[stage];
  std::uint64_t* full = &shared.coefficients_full[stage];
  const int first = tile * kTile;
  const std::uint32_t bytes = min(kTile, op.tokens - first) * kStreams * sizeof(float);
  hopper::mbarrier_arrive_expect(full, kExpand ? (2 + kStreams) * bytes : bytes);
  hopper::bulk_copy(to.pre, op.pre + first * kStreams, bytes, full, policy);
  if constexpr (kExpand) {
    hopper::bulk_copy(to.post, op.post + first * kStreams, bytes, full, policy);
    hopper::bulk_copy(to.comb, op.comb + std::int64_t{first} * kStreams * kStreams,
                      kStreams * bytes, full, policy);
  }
}

__device__ __forceinline__ std::uint64_t normal_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Issued where it stands: the compiler would move a plain load behind the wait for the streams.
__device__ __forceinline__ uint4 load(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

struct Lane {
  std::uint32_t streams[kStreams][4];  // bf16 pairs: eight channels of the new streams
  std::uint32_t collapsed[4];
  float stream_squares;
  float collapsed_squares;
};

// The new streams, their collapse and the squares of a lane's eight channels of one token.
template <bool kExpand>
__device__ __forceinline__ Lane expand(const ProjectShared& shared, int stage, int column) {
  const Coefficients& from = shared.coefficients[stage];
  float pre[kStreams], post[kStreams], comb[kStreams][kStreams];
  *reinterpret_cast<float4*>(pre) = *reinterpret_cast<const float4*>(from.pre[column]);
  if constexpr (kExpand) {
    *reinterpret_cast<float4*>(post) = *reinterpret_cast<const float4*>(from.post[column]);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      *reinterpret_cast<float4*>(comb[j]) =
          *reinterpret_cast<const float4*>(&from.comb[column][j * kStreams]);
    }
  }
  Lane lane;
  uint4 x{};
  if constexpr (kExpand) x = shared.values[stage][kStreams][threadIdx.x];
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    *reinterpret_cast<uint4*>(lane.streams[k]) = shared.values[stage][k][threadIdx.x];
  }
  const std::uint32_t x_words[4] = {x.x, x.y, x.z, x.w};
  float even = 0.0f, odd = 0.0f, collapsed_even = 0.0f, collapsed_odd = 0.0f;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    std::uint32_t fresh[kStreams];
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      if constexpr (kExpand) {
        float a = post[k] * low(x_words[word]), b = post[k] * high(x_words[word]);
#pragma unroll
        for (int j = 0; j < kStreams; ++j) {
          a = fmaf(comb[j][k], low(lane.streams[j][word]), a);
          b = fmaf(comb[j][k], high(lane.streams[j][word]), b);
        }
        fresh[k] = pack(a, b);
      } else {
        fresh[k] = lane.streams[k][word];
      }
    }
    float a = 0.0f, b = 0.0f;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      lane.streams[k][word] = fresh[k];
      even = fmaf(low(fresh[k]), low(fresh[k]), even);
      odd = fmaf(high(fresh[k]), high(fresh[k]), odd);
      a = fmaf(pre[k], low(fresh[k]), a);
      b = fmaf(pre[k], high(fresh[k]), b);
    }
    lane.collapsed[word] = pack(a, b);
    const float c = low(lane.collapsed[word]), d = high(lane.collapsed[word]);
    collapsed_even = fmaf(c, c, collapsed_even);
    collapsed_odd = fmaf(d, d, collapsed_odd);
  }
  lane.stream_squares = even + odd;
  lane.collapsed_squares = collapsed_even + collapsed_odd;
  return lane;
}

__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

__device__ __forceinline__ void store(std::uint8_t* to, const std::uint32_t (&words)[4]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

// Sums of a warp's 32 channels over the eight tokens: sums[token][row].
__device__ __forceinline__ void project(const Lane& lane, const uint4 (&fn)[kSteps][kBlocks],
                                        float (&sums)[kTile][kSumStride]) {
  float c[kBlocks][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int word = 2 * (step % 2);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint4 f = fn[step][block];
      const std::uint32_t a[4] = {f.x, f.y, f.z, f.w};
      hopper::mma_bf16_16x8x16(c[block], a, lane.streams[step / 2][word],
                               lane.streams[step / 2][word + 1]);
    }
  }
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* row = sums[2 * t + i];
    row[g] = c[0][i] + c[1][i];
    row[g + 8] = c[0][i + 2] + c[1][i + 2];
    row[g + 16] = c[2][i] + c[2][i + 2];
  }
  const float streams = quad_sum(lane.stream_squares), collapsed = quad_sum(lane.collapsed_squares);
  if (t == 0) sums[g][kStreamSquares] = streams;
  if (t == 1) sums[g][kCollapsedSquares] = collapsed;
}

// The eleventh warp.
template <bool kExpand>
__device__ __forceinline__ void add_up(const Project& op, ProjectShared& shared, Tiles tiles) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = normal_policy();
  if (lane == 0) {
    for (int i = 0, tile = tiles.first; i < kStages && tile < tiles.end; ++i, tile += tiles.step) {
      fetch_coefficients<kExpand>(op, shared, i, tile, policy);
    }
  }
  int slot = 0, stage = 0;
  std::uint32_t parity = 0;
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.step) {
    hopper::mbarrier_wait(&shared.sums_full[slot], parity);
    float* to = op.partial + (std::int64_t{tile} * kTile * kSlices + blockIdx.x) * kPartialStride;
#pragma unroll
    for (int token = 0; token < kTile; ++token) {
      float sum = 0.0f;
      if (lane < kSums) {
        sum = shared.sums[slot][0][token][lane];
#pragma unroll
        for (int warp = 1; warp < kWarps; ++warp) sum += shared.sums[slot][warp][token][lane];
      }
      if (tile * kTile + token < op.tokens) to[token * kSlices * kPartialStride + lane] = sum;
    }
    __syncwarp();
    if (lane == 0) {
      hopper::mbarrier_arrive(&shared.sums_empty[slot]);
      // Whoever handed in sums has done with the coefficients.
      const int next = tile + kStages * tiles.step;
      if (next < tiles.end) fetch_coefficients<kExpand>(op, shared, stage, next, policy);
    }
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
    if (++stage == kStages) stage = 0;
  }
}

// One of the ten.
template <bool kExpand>
__device__ __forceinline__ void work(const Project& op, ProjectShared& shared, Tiles tiles) {
  const int thread = static_cast<int>(threadIdx.x), slice = static_cast<int>(blockIdx.x);
  const int column = thread % 32 / 4;
  // Bytes from the start of a row to this lane's eight channels.
  const std::int64_t offset = 2 * (slice * kSliceWidth + thread / 32 * kGroup + thread % 4 * 8);
  int ahead = tiles.first;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i, ahead += tiles.step) {
    const int token = ahead * kTile + column;
    if (token < op.tokens) fetch<kExpand>(op, shared, i, token, offset);
    hopper::cp_async_commit();
  }
  uint4 fn[kSteps][kBlocks];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int warp = slice * kWarps + thread / 32;
      fn[step][block] = load(op.fn + ((warp * kSteps + step) * kBlocks + block) * 32 + thread % 32);
    }
  }
  int stage = 0, slot = 0;
  std::uint32_t stage_parity = 0, slot_parity = 1;  // a slot's first phase counts as over
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.step, ahead += tiles.step) {
    const int next = ahead * kTile + column;
    if (next < op.tokens) {
      fetch<kExpand>(op, shared, stage == 0 ? kStages - 1 : stage - 1, next, offset);
    }
    hopper::cp_async_commit();
    hopper::cp_async_wait<kStages - 1>();
    hopper::mbarrier_wait(&shared.coefficients_full[stage], stage_parity);
    const Lane lane = expand<kExpand>(shared, stage, column);
    const std::int64_t token = tile * kTile + column;
    if (token < op.tokens) {
      if constexpr (kExpand) {
        std::uint8_t* to = op.new_streams + token * (2 * kStreams * kHidden) + offset;
#pragma unroll
        for (int k = 0; k < kStreams; ++k) store(to + k * 2 * kHidden, lane.streams[k]);
      }
      store(op.collapsed + token * (2 * kHidden) + offset, lane.collapsed);
    }
    hopper::mbarrier_wait(&shared.sums_empty[slot], slot_parity);
    project(lane, fn, shared.sums[slot][thread / 32]);
    __syncwarp();
    if (thread % 32 == 0) hopper::mbarrier_arrive(&shared.sums_full[slot]);
    if (++slot == kSlots) {
      slot = 0;
      slot_parity ^= 1;
    }
    if (++stage == kStages) {
      stage = 0;
      stage_parity ^= 1;
    }
  }
}

// Grid (slice, strip); strips take tiles in turn.
template <bool kExpand>
__global__ void __launch_bounds__(kProjectThreads, 1) project_kernel(const Project op) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  ProjectShared& shared = *reinterpret_cast<ProjectShared*>(raw);
  hopper::allow_dependent_launch();
  const Tiles tiles{static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y),
                    (op.tokens + kTile - 1) / kTile};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) hopper::mbarrier_init(&shared.coefficients_full[i], 1);
    for (int i = 0; i < kSlots; ++i) {
      hopper::mbarrier_init(&shared.sums_full[i], kWarps);
      hopper::mbarrier_init(&shared.sums_empty[i], 1);
    }
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kThreads) {
    work<kExpand>(op, shared, tiles);
  } else {
    add_up<kExpand>(op, shared, tiles);
  }
}

}  // namespace deepinfer::kernels::mhc
