// csrc/kernels/linear_fp8/cuda/portable.cuh — the same sums by mma.sync, for devices without
// Hopper's warpgroup instructions. Written to be right: 64 x 64 tiles, four warps of 32 x 32, two
// stages.
#pragma once
#include <cstdint>

#include "kernels/hopper/cp_async.cuh"
#include "kernels/hopper/mma_sync.cuh"
#include "kernels/linear_fp8/cuda/scales.cuh"
#include "kernels/linear_fp8/cuda/shape.h"
#include "kernels/linear_fp8/cuda/store.cuh"

namespace deepinfer::kernels::linear_fp8 {

constexpr int kPortableTile = 64;  // rows, and outputs
constexpr int kPortableThreads = 128;
constexpr int kPortablePitch =
    kStep + 16;  // bytes: eight rows of a fragment lie in different banks

struct PortableStage {
  char x[kPortableTile][kPortablePitch];
  char w[kPortableTile][kPortablePitch];
};

__device__ __forceinline__ void mma_fp8_16x8x32(float (&d)[4], const std::uint32_t (&a)[4],
                                                std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// Rows at or past `rows` and columns at or past `columns` arrive as zeros.
__device__ __forceinline__ void copy_rows(char (*to)[kPortablePitch], const std::uint8_t* from,
                                          std::int64_t pitch, int rows, int columns) {
  constexpr int kUnits = kStep / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kPortableTile * kUnits; i += kPortableThreads) {
    const int row = i / kUnits, byte = i % kUnits * 16;
    const bool inside = row < rows && byte < columns;
    hopper::cp_async_16(&to[row][byte], inside ? from + row * pitch + byte : from, inside);
  }
}

// The scales of one block of products for a lane's four rows and for the warp's 32 outputs.
struct PortableScales {
  float x[2][2];
  float w;
};

__device__ __forceinline__ void promote_block(float (&sum)[2][16], const PortableStage& stage,
                                              const PortableScales& scales, int byte, int x_row,
                                              int w_row, int lane) {
  std::uint32_t w[2][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // of 16 outputs: (first half, second half) of each eight
    hopper::ldmatrix_x4(
        w[i], &stage.w[w_row + 16 * i + lane % 8 + lane / 16 * 8][byte + lane / 8 % 2 * 16]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    std::uint32_t x[4];
    hopper::ldmatrix_x4(x, &stage.x[x_row + 16 * r + lane % 16][byte + lane / 16 * 16]);
    const float upper = scales.x[r][0] * scales.w, lower = scales.x[r][1] * scales.w;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float part[4];
      mma_fp8_16x8x32(part, x, w[e / 2][e % 2 * 2], w[e / 2][e % 2 * 2 + 1]);
      float* const to = sum[r] + 4 * e;
      to[0] = fmaf(part[0], upper, to[0]);
      to[1] = fmaf(part[1], upper, to[1]);
      to[2] = fmaf(part[2], lower, to[2]);
      to[3] = fmaf(part[3], lower, to[3]);
    }
  }
}

__global__ void __launch_bounds__(kPortableThreads) portable_kernel(const Shape shape) {
  __shared__ __align__(16) PortableStage stages[2];
  const int per_group = column_tiles(shape, kPortableTile) / shape.groups;
  const int group = static_cast<int>(blockIdx.x) / per_group;
  const int column = (static_cast<int>(blockIdx.x) - group * per_group) * kPortableTile;
  const int row = static_cast<int>(blockIdx.y) * kPortableTile;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int x_row = warp / 2 * 32, w_row = warp % 2 * 32;
  const int output = group * shape.group_outputs() + column;
  const std::int64_t x_pitch = static_cast<std::int64_t>(shape.groups) * shape.k;
  const std::uint8_t* const x =
      shape.x_code + row * x_pitch + static_cast<std::int64_t>(group) * shape.k;
  const std::uint8_t* const w = shape.w_code + static_cast<std::int64_t>(output) * shape.k;
  const auto fetch = [&](int step) {
    if (step < shape.steps()) {
      const int from = step * kStep, columns = shape.k - from;
      copy_rows(stages[step % 2].x, x + from, x_pitch, shape.m - row, columns);
      copy_rows(stages[step % 2].w, w + from, shape.k, shape.group_outputs() - column, columns);
    }
    hopper::cp_async_commit();
  };
  float sum[2][16] = {};
  const std::int64_t w_line = min((output + w_row) / kBlock, shape.n / kBlock - 1);
  fetch(0);
  for (int block = 0; block < shape.blocks(); ++block) {
    const int step = block / kBlocksPerStep;
    if (block % kBlocksPerStep == 0) {
      fetch(step + 1);
      hopper::cp_async_wait<1>();
      __syncthreads();
    }
    PortableScales scales;
    for (int i = 0; i < 4; ++i) {
      const int at = min(row + x_row + lane / 4 + 8 * i, shape.m - 1);
      const std::int64_t line = static_cast<std::int64_t>(at) * shape.groups + group;
      scales.x[i / 2][i % 2] = power_of_two(shape.x_scale[line * shape.blocks() + block]);
    }
    scales.w = power_of_two(shape.w_scale[w_line * shape.blocks() + block]);
    promote_block(sum, stages[step % 2], scales, block % kBlocksPerStep * kBlock, x_row, w_row,
                  lane);
    if (block % kBlocksPerStep == kBlocksPerStep - 1) __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + x_row + 16 * r + lane / 4;
    const std::int64_t first = static_cast<std::int64_t>(at) * shape.n + output + w_row;
    store_rows<kBlock>(sum[r], shape.y, shape.y_is_fp32, first, shape.n, shape.m - at,
                       shape.group_outputs() - column - w_row, lane);
  }
}

}  // namespace deepinfer::kernels::linear_fp8
