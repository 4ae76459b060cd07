// csrc/kernels/sparse_mla/cuda/weigh.cuh — the role of hopper.cu that makes weights of a tile:
// scores, running softmax, and at a token's end what its sums are multiplied by.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/hopper/cp_async.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/hopper/wgmma_bf16.cuh"
#include "kernels/sparse_mla/cuda/pipeline.cuh"
#include "kernels/sparse_mla/cuda/rows.cuh"

namespace deepinfer::kernels::sparse_mla {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// A token's query in the tensor core's layout, under way.
__device__ __forceinline__ void load_query(const Problem& problem, Shared& shared, int token) {
  const unsigned char* source = reinterpret_cast<const unsigned char*>(
      problem.query + static_cast<std::int64_t>(token) * kHeads * kChannels);
  const int thread = threadIdx.x % kGroup;
#pragma unroll 8
  for (int i = 0; i < kTileBytes / 16 / kGroup; ++i) {
    const int unit = i * kGroup + thread;
    const int row = unit / 64;
    const int panel = unit / 8 % 8;
    cp_async_16(shared.query + panel * kPanelBytes + row * 128 + ((unit % 8 ^ (row & 7)) << 4),
                source + unit * 16);
  }
  cp_async_commit();
}

// Of the tile once it is there, under way.
__device__ __forceinline__ void start_scores(Shared& shared, const Turn& turn, float (&s)[32]) {
  std::uint64_t query = wgmma_descriptor(shared.query);
  std::uint64_t keys = wgmma_descriptor(shared.keys[turn.buffer]);
  asm volatile("" : "+l"(query), "+l"(keys));  // or the sums below are all kept in registers
  mbarrier_wait(&shared.full[turn.buffer], turn.parity);
  fence_to_async();
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 32; ++step) {
    const int at = (step / 4 * kPanelBytes + step % 4 * 32) / 16;
    wgmma_bf16(s, query + at, keys + at, step > 0);
  }
  wgmma_commit();
}

// The running softmax of two rows of heads, a quarter of their columns in this thread.
struct Softmax {
  float top[2];  // reference of the exponent, in powers of two
  float sum[2];  // this thread's part

  __device__ void reset() {
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  // Scores to weights in place; true in `grown` where the sums so far shrink by `shrink`.
  __device__ __forceinline__ bool weigh(float (&s)[32], unsigned long long visible,
                                        float (&shrink)[2]) {
    constexpr float kScale = kScoreScale * kRestore;
    if (visible != ~0ull) {  // column 16 g + 4 w + r is bit 16 w + 4 g + r
      visible >>= threadIdx.x / 2 % 2 * 16 + threadIdx.x % 2 * 2;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int at = i / 4 % 2 * 32 + i / 8 * 4 + i % 2;
        if ((visible >> at & 1) == 0) s[i] = -INFINITY;
      }
    }
    bool grown = false;
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = s[2 * half];
#pragma unroll
      for (int i = 0; i < 16; ++i) most = fmaxf(most, s[i / 2 * 4 + 2 * half + i % 2]);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * kScale;
      shrink[half] = 1.0f;
      if (most > top[half] + kSlack) {
        shrink[half] = exp2_fast(top[half] - most);
        top[half] = most;
        sum[half] *= shrink[half];
        grown = true;
      }
      base[half] = top[half] == -INFINITY ? 0.0f : top[half];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part = 0.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float& z = s[i / 2 * 4 + 2 * half + i % 2];
        z = exp2_fast(fmaf(z, kScale, -base[half]));
        part += z;
      }
      sum[half] += part;
    }
    return grown;
  }

  // What the summed rows are to be multiplied by; 0 where nothing was seen.
  __device__ float final_scale(int half, float sink) const {
    float total = sum[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const float last = sink * 1.4426950408889634f;
    const float most = fmaxf(top[half], last);
    const float factor = exp2_fast(top[half] - most);
    const float all = total * factor + exp2_fast(last - most);
    return total == 0.0f ? 0.0f : factor / all * kRestore;
  }
};

// 64 heads by 64 slots of bf16, in the layout of wgmma.cuh.
__device__ __forceinline__ void store_weights(unsigned char* weights, const float (&s)[32]) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 % 4 * 16 + lane % 16;
  std::uint32_t line = shared_address(weights) + row * 128 + ((lane / 16 ^ (row & 7)) << 4);
  asm volatile("" : "+r"(line));  // or all four addresses are kept in registers
#pragma unroll
  for (int block = 0; block < 8; block += 2) {
    const float* v = s + 4 * block;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     line ^ (block << 4)),
                 "r"(pack_bf16(v[0], v[1])), "r"(pack_bf16(v[2], v[3])), "r"(pack_bf16(v[4], v[5])),
                 "r"(pack_bf16(v[6], v[7]))
                 : "memory");
  }
}

// The tile's weights and, where the maximum grew, what earlier sums are multiplied by.
__device__ __forceinline__ void publish(Shared& shared, const Turn& turn, Softmax& softmax,
                                        float (&s)[32]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  float shrink[2];
  const bool grown = softmax.weigh(s, shared.visible[turn.tile % 8], shrink);
  const bool any = __any_sync(~0u, grown);
  const Turn before = turn.before();  // whose weights are to have been used
  mbarrier_wait(&shared.free[before.buffer][kParts - 1], before.parity);
  if (any && lane % 4 == 0) {
    shared.rescale[turn.buffer][warp * 16 + lane / 4] = shrink[0];
    shared.rescale[turn.buffer][warp * 16 + lane / 4 + 8] = shrink[1];
  }
  if (lane == 0) shared.rescaled[turn.buffer][warp] = any;
  store_weights(shared.weights, s);
  fence_to_async();
  announce(&shared.weighed[turn.buffer]);
}

__device__ void weigh_scores(const Problem& problem, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int thread = threadIdx.x % kGroup;
  const int head = thread / 32 * 16 + lane / 4;
  Walk<kTile> walk(problem, blockIdx.x);
  Turn turn;
  Softmax softmax;
  std::uint32_t parity = 1;
  load_query(problem, shared, walk.token);
  while (!walk.done(problem)) {
    const float turned =
        thread < kTurned
            ? __ldg(problem.rotation + static_cast<std::int64_t>(walk.token) * kTurned + thread)
            : 0.0f;
    const int tiles = walk.tiles;
    walk.next_token(problem);
    if (thread == 0 && !walk.done(problem)) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                       problem.query + static_cast<std::int64_t>(walk.token) * kHeads * kChannels),
                   "r"(kTileBytes));
    }
    cp_async_wait<0>();
    fence_to_async();
    group_barrier(1);
    softmax.reset();
    float s[32];
    for (int tile = 0; tile < tiles; ++tile) {
      start_scores(shared, turn, s);
      wgmma_wait<0>();
      wgmma_pin(s);
      if (tile == tiles - 1 && !walk.done(problem)) {
        group_barrier(1);  // the query's last use, by all four warps
        load_query(problem, shared, walk.token);
      }
      publish(shared, turn, softmax, s);
      turn.next();
    }
    mbarrier_wait(&shared.taken, parity);
    parity ^= 1;
    const float scale[2] = {softmax.final_scale(0, problem.sink[head]),
                            softmax.final_scale(1, problem.sink[head + 8])};
    if (lane % 4 == 0) {
      shared.scale[head] = scale[0];
      shared.scale[head + 8] = scale[1];
    }
    if (thread < kTurned) shared.rotation[thread] = turned;
    announce(&shared.finished);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::sparse_mla
