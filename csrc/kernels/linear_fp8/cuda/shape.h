// csrc/kernels/linear_fp8/cuda/shape.h — one call of linear_fp8, as the kernels see it.
#pragma once
#include <cstdint>

namespace deepinfer::kernels::linear_fp8 {

constexpr int kBlock = 32;  // products under one scale
constexpr int kStep = 128;  // columns of one pipeline stage: four blocks
constexpr int kBlocksPerStep = kStep / kBlock;

struct Shape {
  const std::uint8_t* x_code;
  const std::uint8_t* x_scale;
  const std::uint8_t* w_code;
  const std::uint8_t* w_scale;
  void* y;
  int m;
  int n;
  int k;
  int groups;
  int y_is_fp32;

  __host__ __device__ int group_outputs() const { return n / groups; }
  __host__ __device__ int blocks() const { return k / kBlock; }
  __host__ __device__ int steps() const { return (k + kStep - 1) / kStep; }
};

// Tiles of one group's outputs follow one another, then those of the next group.
__host__ __device__ inline int column_tiles(const Shape& shape, int tile_outputs) {
  return shape.groups * ((shape.group_outputs() + tile_outputs - 1) / tile_outputs);
}

}  // namespace deepinfer::kernels::linear_fp8
