// csrc/kernels/indexer/cuda/pipeline.cuh — sums of groups to scores, with the matrix unit one step
// ahead of the fp32 unit. A step is 16 keys of each warp against one query row.
#pragma once
#include <cstdint>

#include "kernels/indexer/cuda/keys.cuh"

namespace deepinfer::kernels::indexer {

// Powers of two of this lane's two keys.
struct Scales {
  float of[2][kGroups];

  __device__ __forceinline__ explicit Scales(const std::uint32_t (&packed)[2]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      of[0][g] = decode_scale(packed[0], g);
      of[1][g] = decode_scale(packed[1], g);
    }
  }
};

// Adds the sums of group g, scaled, to those of the groups before.
__device__ __forceinline__ void add_group(int g, const float (&sums)[16], const Scales& scales,
                                          float (&products)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float scale = scales.of[i / 2 % 2][g];
    products[i] = g == 0 ? sums[i] * scale : fmaf(sums[i], scale, products[i]);
  }
}

__device__ __forceinline__ void read_weights(const float* weights, float2 (&out)[4]) {
  const unsigned t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = reinterpret_cast<const float2*>(weights)[4 * i + t];
}

// The sum over heads for this lane's two keys; lanes 0 and 1 of four then hold key lane / 4 and key
// lane / 4 + 8. `weights` are those of heads 8 i + 2 t and the next.
__device__ __forceinline__ float reduce_heads(const float (&products)[16],
                                              const float2 (&weights)[4]) {
  float total[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* x = products + 4 * i + 2 * half;
      total[half] = fmaf(weights[i].x, fmaxf(x[0], 0.0f), total[half]);
      total[half] = fmaf(weights[i].y, fmaxf(x[1], 0.0f), total[half]);
    }
  }
  const bool odd = threadIdx.x % 2 != 0;
  const float theirs = __shfl_xor_sync(~0u, odd ? total[0] : total[1], 1);
  const float pair = (odd ? total[1] : total[0]) + theirs;
  return pair + __shfl_xor_sync(~0u, pair, 2);
}

// Waits for group g of a step, of which younger groups and, but for the last step, the same of the
// next step are under way.
template <bool kLastStep>
__device__ __forceinline__ void await_group(int g, float (&sums)[16],
                                            const std::uint32_t (&keys)[4]) {
  if (!kLastStep || g == 0)
    finish_group<kGroups - 1>(sums, keys);
  else if (g == 1)
    finish_group<2>(sums, keys);
  else if (g == 2)
    finish_group<1>(sums, keys);
  else
    finish_group<0>(sums, keys);
}

// Runs kSteps steps. As soon as the sums of a group have been used, the same group of the next step
// starts into the same registers. `steps` says what a step is:
//   start(step, g, sums)  starts group g; the step before has been through prepare()
//   keys(g)               the fragments that the group under way reads
//   prepare(step)         returns the scales of the step's keys, before they are used
//   use(step, products)   gets the products of all heads
// No loop goes round while products are under way: the compiler would wait for each of them.
template <int kSteps, int kStep = 0, typename Steps>
__device__ __forceinline__ void run_steps(Steps& steps, Sums& sums) {
  if constexpr (kStep == 0) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) steps.template start<0>(g, sums[g]);
  }
  constexpr bool kLast = kStep + 1 == kSteps;
  const Scales scales = steps.template prepare<kStep>();
  float products[16];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    await_group<kLast>(g, sums[g], steps.keys(g));
    add_group(g, sums[g], scales, products);
    if constexpr (!kLast) steps.template start<kStep + 1>(g, sums[g]);
  }
  steps.template use<kStep>(products);
  if constexpr (!kLast) run_steps<kSteps, kStep + 1>(steps, sums);
}

}  // namespace deepinfer::kernels::indexer
