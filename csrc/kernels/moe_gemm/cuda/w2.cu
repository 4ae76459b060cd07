// csrc/kernels/moe_gemm/cuda/w2.cu — the down projection, one bf16 row per row; see moe_gemm.h.
#include <cuda_bf16.h>

#include "kernels/moe_gemm/cuda/kernel.cuh"
#include "kernels/moe_gemm/cuda/moe_gemm.h"

namespace deepinfer::kernels::moe_gemm {
namespace {

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(two.x)) |
         static_cast<std::uint32_t>(__bfloat16_as_ushort(two.y)) << 16;
}

// Two 8 x 8 tiles of bf16, transposed; lane l < 16 gives the address of row l % 8 of tile l / 8.
__device__ __forceinline__ void store_transposed(std::uint32_t address, std::uint32_t first,
                                                 std::uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
               "r"(first), "r"(second)
               : "memory");
}

struct Bf16Rows {
  static constexpr int kPart = 32;  // tokens that pass through shared memory at a time

  template <int kTokens>
  struct Scratch {
    alignas(16) std::uint8_t rows[kPart][2 * kTileRows + 16];  // 16 more against bank conflicts
  };

  std::uint8_t* out;
  int features;

  // Tokens 8 j .. 8 j + 7 of the tile, as rows of the scratch memory.
  template <typename S>
  __device__ __forceinline__ void turn(const float (&sum)[4], const Tile& tile, const Lane& lane,
                                       S& scratch, int row) const {
    const int l = lane.thread % 16;
    const void* to = &scratch.rows[row + l % 8][2 * (16 * lane.warp + 8 * (l / 8))];
    store_transposed(hopper::shared_address(to),
                     pack_bf16(sum[0] * tile.factor0, sum[1] * tile.factor0),
                     pack_bf16(sum[2] * tile.factor1, sum[3] * tile.factor1));
  }

  template <int kTokens, typename S>
  __device__ __forceinline__ void store(float (&sum)[kTokens / 2], const Tile& tile,
                                        const Lane& lane, S& scratch) const {
    constexpr int kNow = kTokens < kPart ? kTokens : kPart;
#pragma unroll
    for (int part = 0; part < kTokens; part += kNow) {
      meet(tile.warpgroup);
#pragma unroll
      for (int j = part / 8; j < (part + kNow) / 8; ++j) {
        const float four[4] = {sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]};
        turn(four, tile, lane, scratch, 8 * j - part);
      }
      meet(tile.warpgroup);
#pragma unroll
      for (int i = lane.thread; i < 8 * kNow; i += 128) {
        const int token = part + i / 8;
        const int feature = kTileRows * tile.index + 8 * (i % 8);
        if (token >= tile.rows || feature >= features) continue;
        const std::int64_t row = tile.first_row + token;
        *reinterpret_cast<uint4*>(out + 2 * (row * features + feature)) =
            *reinterpret_cast<const uint4*>(&scratch.rows[i / 8][16 * (i % 8)]);
      }
    }
  }
};

}  // namespace
}  // namespace deepinfer::kernels::moe_gemm

extern "C" int deepinfer_cuda_moe_gemm_w2(const void* x, const std::int32_t* offsets,
                                          const std::uint8_t* weight, const float* row_factor,
                                          void* out, float* sums, std::int32_t* flags,
                                          std::int64_t rows, std::int64_t experts, std::int64_t k,
                                          std::int64_t n, std::int64_t blocks, std::int64_t tile,
                                          void* stream) {
  using namespace deepinfer::kernels::moe_gemm;
  const Problem problem =
      problem_of(offsets, weight, row_factor, sums, flags, blocks, rows, experts, k, n);
  if (!allowed(x, problem, rows, experts, k, n, tile)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (!aligned(out)) return cudaErrorInvalidValue;
  const Bf16Rows epilogue{static_cast<std::uint8_t*>(out), static_cast<int>(n)};
  return launch(x, problem, k, tile, epilogue, static_cast<cudaStream_t>(stream));
}
