// csrc/kernels/sparse_mla/cuda/sum.cuh — the role of hopper.cu that sums weighted rows over a
// token's tiles, turns the result back and stores it.
#pragma once
#include <cstdint>

#include "kernels/hopper/wgmma.cuh"
#include "kernels/hopper/wgmma_bf16.cuh"
#include "kernels/sparse_mla/cuda/pipeline.cuh"
#include "kernels/sparse_mla/cuda/weigh.cuh"

namespace deepinfer::kernels::sparse_mla {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of a 4 x 4 matrix of words whose column c is in lane c of four, row c to lane c.
__device__ __forceinline__ void transpose(std::uint32_t (&w)[4]) {
  const int lane = threadIdx.x % 4;
  const bool odd = (lane & 1) != 0;
  const bool high = (lane & 2) != 0;
  std::uint32_t x = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
  std::uint32_t y = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  (odd ? w[0] : w[1]) = x;
  (odd ? w[2] : w[3]) = y;
  x = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2);
  y = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
  (high ? w[0] : w[2]) = x;
  (high ? w[1] : w[3]) = y;
}

// Channels 256 side to 256 side + 255 of a token's result.
__device__ __forceinline__ void store_result(const Problem& problem, const Shared& shared,
                                             int token, int side, float (&o)[2][64]) {
  const int lane = threadIdx.x % 32;
  const int head = threadIdx.x / 32 % 4 * 16 + lane / 4;
  const float scale[2] = {shared.scale[head], shared.scale[head + 8]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __nv_bfloat16* line =
        problem.out + (static_cast<std::int64_t>(token) * kHeads + head + 8 * half) * kChannels +
        side * 256;
#pragma unroll
    for (int four = 0; four < 8; ++four) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = four * 4 + i;
        float a = o[block / 16][block % 16 * 4 + 2 * half] * scale[half];
        float b = o[block / 16][block % 16 * 4 + 2 * half + 1] * scale[half];
        if (block >= 24 && side == 1) {
          const float2 turn =
              reinterpret_cast<const float2*>(shared.rotation)[(block - 24) * 4 + lane % 4];
          const float even = a * turn.x + b * turn.y;
          b = b * turn.x - a * turn.y;
          a = even;
        }
        words[i] = pack_bf16(a, b);
      }
      transpose(words);
      *reinterpret_cast<uint4*>(line + four * 32 + lane % 4 * 8) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

__device__ void sum_values(const Problem& problem, Shared& shared, int side) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  Walk<kTile> walk(problem, blockIdx.x);
  Turn turn;
  std::uint32_t parity = 0;
  float o[2][64];
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i / 64][i % 64] = 0.0f;
  while (!walk.done(problem)) {
    const int token = walk.token;
    const int tiles = walk.tiles;
    walk.next_token(problem);
    for (int tile = 0; tile < tiles; ++tile) {
      mbarrier_wait(&shared.weighed[turn.buffer], turn.parity);
      if (tile > 0 && shared.rescaled[turn.buffer][warp] != 0) {
        const float* rescale = shared.rescale[turn.buffer] + warp * 16 + lane / 4;
        const float shrink[2] = {rescale[0], rescale[8]};
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i / 64][i % 64] *= shrink[i / 2 % 2];
      }
      const std::uint64_t weights = wgmma_descriptor(shared.weights);
      const std::uint64_t values = wgmma_descriptor_transposed(
          shared.keys[turn.buffer] + side * 4 * kPanelBytes, kPanelBytes);
      wgmma_pin(o[0]);
      wgmma_pin(o[1]);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_bf16_transposed(o[0], weights + step * 2, values + step * 2048 / 16,
                              tile > 0 || step > 0);
        wgmma_bf16_transposed(o[1], weights + step * 2,
                              values + (2 * kPanelBytes + step * 2048) / 16, tile > 0 || step > 0);
        wgmma_commit();
      }
      wgmma_wait<3>();
      announce(&shared.free[turn.buffer][0]);
      wgmma_wait<2>();
      announce(&shared.free[turn.buffer][1]);
      wgmma_wait<1>();
      announce(&shared.free[turn.buffer][2]);
      wgmma_wait<0>();
      wgmma_pin(o[0]);
      wgmma_pin(o[1]);
      announce(&shared.free[turn.buffer][3]);
      turn.next();
    }
    mbarrier_wait(&shared.finished, parity);
    parity ^= 1;
    store_result(problem, shared, token, side, o);
    announce(&shared.taken);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::sparse_mla
