// csrc/kernels/mhc/cuda/project.cuh — the kernel that reads the streams: expand, collapse, and each
// slice's share of the projection.
//
// A block owns 320 channels of all four streams and keeps their part of fn in registers, so that fn
// is read once per block however many tokens there are; tokens pass by in tiles of eight. A lane's
// 16 bytes of a stream are four values of two MMA steps for the token of its column: streams go
// from memory through registers into the MMA and out again without being shared between lanes.
// Loads run kStages - 1 tiles ahead through shared memory; each thread reads back only what it
// copied itself, the coefficients excepted.
#pragma once
#include <cuda_runtime.h>

#include "kernels/hopper/cp_async.cuh"
#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/hopper/mma_sync.cuh"
#include "kernels/mhc/cuda/layout.cuh"

namespace deepinfer::kernels::mhc {

constexpr int kStages = 4;            // tiles on their way, one being worked on
constexpr int kSteps = 2 * kStreams;  // MMA steps of 16 per group of 32 channels
constexpr int kBlocks = 3;            // of 16 rows: hi, rest, and eight of each

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
  float sums[2][kWarps][kSums * kTile];
};

// Starts the copies of one tile: this thread's 16 bytes of each stream and of x, and the tile's
// coefficients by the last two warps.
template <bool kExpand>
__device__ __forceinline__ void fetch(const Project& op, ProjectShared& shared, int stage,
                                      int first, int token, std::int64_t offset) {
  if (token < op.tokens) {
    const std::uint8_t* streams =
        op.streams + token * std::int64_t{2 * kStreams * kHidden} + offset;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      hopper::cp_async_16(&shared.values[stage][k][threadIdx.x], streams + k * 2 * kHidden);
    }
    if constexpr (kExpand) {
      hopper::cp_async_16(&shared.values[stage][kStreams][threadIdx.x],
                          op.x + token * std::int64_t{2 * kHidden} + offset);
    }
  }
  Coefficients& to = shared.coefficients[stage];
  const int i = static_cast<int>(threadIdx.x) - (kThreads - 2 * 32);
  if (i >= 0 && i < kTile && first + i < op.tokens) {
    hopper::cp_async_16(to.pre[i], op.pre + (first + i) * kStreams);
    if constexpr (kExpand) hopper::cp_async_16(to.post[i], op.post + (first + i) * kStreams);
  }
  if constexpr (kExpand) {
    if (i >= kTile && i < 5 * kTile && first + (i - kTile) / 4 < op.tokens) {
      hopper::cp_async_16(&to.comb[0][(i - kTile) * 4],
                          op.comb + first * kStreams * kStreams + (i - kTile) * 4);
    }
  }
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

// Sums of a warp's 32 channels over the eight tokens: sums[row * 8 + token].
__device__ __forceinline__ void project(const Lane& lane, const uint4 (&fn)[kSteps][kBlocks],
                                        float* sums) {
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
  const auto put = [&](int row, float a, float b) {
    *reinterpret_cast<float2*>(&sums[row * kTile + 2 * t]) = make_float2(a, b);
  };
  put(g, c[0][0] + c[1][0], c[0][1] + c[1][1]);
  put(g + 8, c[0][2] + c[1][2], c[0][3] + c[1][3]);
  put(g + 16, c[2][0] + c[2][2], c[2][1] + c[2][3]);
  const float streams = quad_sum(lane.stream_squares), collapsed = quad_sum(lane.collapsed_squares);
  if (t == 0) sums[kStreamSquares * kTile + g] = streams;
  if (t == 1) sums[kCollapsedSquares * kTile + g] = collapsed;
}

// Grid (slice, strip); strips take tiles in turn.
template <bool kExpand>
__global__ void __launch_bounds__(kThreads, 1) project_kernel(const Project op) {
  extern __shared__ __align__(16) std::uint8_t raw[];
  ProjectShared& shared = *reinterpret_cast<ProjectShared*>(raw);
  hopper::allow_dependent_launch();
  const int thread = static_cast<int>(threadIdx.x), slice = static_cast<int>(blockIdx.x);
  const int column = thread % 32 / 4;
  // Bytes from the start of a row to this lane's eight channels.
  const std::int64_t offset = 2 * (slice * kSliceWidth + thread / 32 * kGroup + thread % 4 * 8);
  const int tiles = (op.tokens + kTile - 1) / kTile;
  const int strips = static_cast<int>(gridDim.y);

  const auto prefetch = [&](int number) {  // of this block's tiles
    const int tile = static_cast<int>(blockIdx.y) + number * strips;
    if (tile < tiles) {
      fetch<kExpand>(op, shared, number % kStages, tile * kTile, tile * kTile + column, offset);
    }
    hopper::cp_async_commit();
  };
  for (int number = 0; number < kStages - 1; ++number) prefetch(number);
  uint4 fn[kSteps][kBlocks];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int warp = slice * kWarps + thread / 32;
      fn[step][block] = load(op.fn + ((warp * kSteps + step) * kBlocks + block) * 32 + thread % 32);
    }
  }
  hopper::cp_async_wait<kStages - 2>();
  __syncthreads();

  int number = 0;
  for (int tile = static_cast<int>(blockIdx.y); tile < tiles; tile += strips, ++number) {
    prefetch(number + kStages - 1);
    const Lane lane = expand<kExpand>(shared, number % kStages, column);
    const int token = tile * kTile + column;
    if (token < op.tokens) {
      if constexpr (kExpand) {
        std::uint8_t* to = op.new_streams + token * std::int64_t{2 * kStreams * kHidden} + offset;
#pragma unroll
        for (int k = 0; k < kStreams; ++k) store(to + k * 2 * kHidden, lane.streams[k]);
      }
      store(op.collapsed + token * std::int64_t{2 * kHidden} + offset, lane.collapsed);
    }
    auto& sums = shared.sums[number % 2];
    project(lane, fn, sums[thread / 32]);
    hopper::cp_async_wait<kStages - 2>();  // the next tile's coefficients, for everybody
    __syncthreads();
    if (thread < kSums * kTile) {
      float sum = sums[0][thread];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) sum += sums[warp][thread];
      const std::int64_t owner = tile * kTile + thread % kTile;
      if (owner < op.tokens) {
        op.partial[(owner * kSlices + slice) * kPartialStride + thread / kTile] = sum;
      }
    }
  }
}

}  // namespace deepinfer::kernels::mhc
