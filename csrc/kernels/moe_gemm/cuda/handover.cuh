// csrc/kernels/moe_gemm/cuda/handover.cuh — sums of a tile that one block begins and the next goes
// on with, through device memory: fp32 as they are in the accumulators, so that nothing changes.
//
// A block hands over at most once in a launch. Its flag, one per warpgroup, is 0 before and after
// the launch. All blocks of the grid run at once or in the order of their indices, and a block
// waits for the one before alone.
#pragma once
#include "kernels/moe_gemm/cuda/consumer.cuh"

namespace deepinfer::kernels::moe_gemm {

// Barrier of one warpgroup; 0 is the whole block's.
__device__ __forceinline__ void meet(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
}

// A thread's place in the sums that `block` hands over, in units of four floats.
template <typename Config>
__device__ __forceinline__ float4* handed_over(const Problem& problem, int block, int warpgroup,
                                               const Lane& lane) {
  return reinterpret_cast<float4*>(problem.sums + static_cast<std::int64_t>(block) * kHandedOver) +
         128 * warpgroup + lane.thread;
}

template <int kTokens, typename Config>
__device__ __forceinline__ void hand_over(const float (&sums)[Config::kTiles][kTokens / 2],
                                          const Problem& problem, int warpgroup, const Lane& lane) {
  const int block = static_cast<int>(blockIdx.x);
  float4* to = handed_over<Config>(problem, block, warpgroup, lane);
#pragma unroll
  for (int i = 0; i < Config::kTiles * kTokens / 8; ++i) {
    const float* four = &sums[i / (kTokens / 8)][4 * (i % (kTokens / 8))];
    __stcg(to + i * 128 * Config::kWarpgroups, make_float4(four[0], four[1], four[2], four[3]));
  }
  __threadfence();
  meet(warpgroup);
  if (lane.thread != 0) return;
  asm volatile(
      "st.release.gpu.global.s32 [%0], 1;" ::"l"(problem.flags + kFlags * block + warpgroup)
      : "memory");
}

// Waits for the sums of the block before.
template <int kTokens, typename Config>
__device__ __forceinline__ void take_over(float (&sums)[Config::kTiles][kTokens / 2],
                                          const Problem& problem, int warpgroup, const Lane& lane) {
  const int block = static_cast<int>(blockIdx.x) - 1;
  if (lane.thread == 0) {
    int* flag = problem.flags + kFlags * block + warpgroup;
    int ready = 0;
    while (ready == 0) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(ready) : "l"(flag) : "memory");
    }
    *flag = 0;
  }
  meet(warpgroup);
  const float4* from = handed_over<Config>(problem, block, warpgroup, lane);
#pragma unroll
  for (int i = 0; i < Config::kTiles * kTokens / 8; ++i) {
    const float4 four = __ldcg(from + i * 128 * Config::kWarpgroups);
    float* to = &sums[i / (kTokens / 8)][4 * (i % (kTokens / 8))];
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  }
}

}  // namespace deepinfer::kernels::moe_gemm
