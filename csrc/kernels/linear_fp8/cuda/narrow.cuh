// csrc/kernels/linear_fp8/cuda/narrow.cuh — the kernel of sm_90a for few rows: outputs are the rows
// of the matrix instruction, rows of x its columns, so that no product is computed for a row that
// is not there.
//
// One consumer warpgroup owns 64 outputs. It has the four blocks of one step computed while it adds
// those of the step before to the sums.
#pragma once
#include "kernels/hopper/wgmma_fp8.cuh"
#include "kernels/linear_fp8/cuda/ring.cuh"
#include "kernels/linear_fp8/cuda/store.cuh"

namespace deepinfer::kernels::linear_fp8 {

template <int kTokens>
struct Narrow {
  static constexpr int kRows = kTokens;
  static constexpr int kOutputs = 64;
  static constexpr int kThreads = 2 * kWarpgroup;
  static constexpr int kScaleBlocks = kOutputs / kBlock;
  static constexpr int kScaleFloats = 4 * (kTokens + kScaleBlocks);
  static constexpr int kMinBlocks = kTokens <= 16 ? 2 : 1;

  // By block first: a lane reads two neighboring rows at once.
  static __device__ __forceinline__ void put_x(float* stage, int row, const float4& scales) {
    stage[row] = scales.x;
    stage[kTokens + row] = scales.y;
    stage[2 * kTokens + row] = scales.z;
    stage[3 * kTokens + row] = scales.w;
  }
  static __device__ __forceinline__ void put_w(float* stage, int block, const float4& scales) {
    reinterpret_cast<float4*>(stage)[kTokens + block] = scales;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <typename T>
struct NarrowConsumer {
  static constexpr int kHeld = T::kRows / 2;  // sums of a lane
  static constexpr int kUnroll = 4;           // steps between which nothing is under way
  static constexpr std::uint32_t kScaleBytes = 4 * T::kScaleFloats;
  using Parts = float[kBlocksPerStep][kHeld];
  const Ring& ring;
  // Addresses in shared memory, of stage 0.
  std::uint32_t x_code, x_scale, w_scale, full, empty;
  Cursor at, done;
  float sum[kHeld];
  float part[2][kBlocksPerStep][kHeld];

  __device__ __forceinline__ void issue(Parts& to) {
    mbarrier_wait_at(full + 8 * at.stage, at.parity);
    const std::uint64_t x = wgmma_descriptor_at(x_code + at.stage * ring.stage_bytes);
    const std::uint64_t w =
        wgmma_descriptor_at(x_code + at.stage * ring.stage_bytes + ring.x_bytes());
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < kBlocksPerStep; ++block) {
      wgmma_fp8(to[block], w + 2 * block, x + 2 * block);
    }
    wgmma_commit();
    at.next(ring.stages);
  }

  // Adds a step whose products are complete once at most `kPending` groups are under way.
  template <int kPending>
  __device__ __forceinline__ void add(Parts& from) {
    float by[kBlocksPerStep][kHeld / 2];  // of rows 8 i + 2 (lane % 4) and the next
    const std::uint32_t scales = done.stage * kScaleBytes;
    const float2 w01 = load_two(w_scale + scales), w23 = load_two(w_scale + scales + 8);
    const float w[kBlocksPerStep] = {w01.x, w01.y, w23.x, w23.y};
#pragma unroll
    for (int block = 0; block < kBlocksPerStep; ++block) {
#pragma unroll
      for (int i = 0; i < kHeld / 4; ++i) {
        const float2 x = load_two(x_scale + scales + (block * T::kRows + 8 * i) * 4);
        by[block][2 * i] = x.x * w[block];
        by[block][2 * i + 1] = x.y * w[block];
      }
    }
    wgmma_wait<kPending>();
#pragma unroll
    for (int block = 0; block < kBlocksPerStep; ++block) wgmma_pin(from[block]);
    __syncwarp();
    mbarrier_arrive_at(empty + 8 * done.stage);
    done.next(ring.stages);
#pragma unroll
    for (int block = 0; block < kBlocksPerStep; ++block) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        sum[i] = fmaf(from[block][i], by[block][i / 4 * 2 + i % 2], sum[i]);
      }
    }
  }

  template <int kSteps>
  __device__ __forceinline__ void run() {
    issue(part[0]);
#pragma unroll
    for (int i = 1; i < kSteps; ++i) {
      issue(part[i % 2]);
      add<1>(part[(i + 1) % 2]);
    }
    add<0>(part[(kSteps + 1) % 2]);
  }

  __device__ __forceinline__ void tile(int steps) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum[i] = 0.0f;
#pragma unroll 1
    for (; steps >= kUnroll; steps -= kUnroll) run<kUnroll>();
    if (steps >= 2) {
      run<2>();
      steps -= 2;
    }
    if (steps > 0) run<1>();
  }
};

template <typename T>
__device__ __forceinline__ void consume_narrow(const Shape& shape, const Ring& ring,
                                               const Shared<T>& shared, int tiles) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t scales = shared_address(shared.scales);
  NarrowConsumer<T> consumer{ring,
                             shared_address(shared.codes),
                             keep(scales + lane % 4 * 8),
                             keep(scales + (4 * T::kRows + warp / 2 * 4) * 4),
                             shared_address(shared.barriers.full),
                             shared_address(shared.barriers.empty)};
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    consumer.tile(shape.steps());
    const Place where = place<T>(shape, tile);
    if (where.column + warp * 16 >= shape.group_outputs()) continue;
    store_columns<T::kRows>(consumer.sum, shape.y, shape.y_is_fp32, where.row,
                            where.output + warp * 16, shape.n, shape.m, lane);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks)
    narrow_kernel(const Shape shape, const Ring ring, const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map, int tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  __shared__ Barriers barriers;
  Shared<T> shared(dynamic, ring, barriers);
  open_ring<T>(barriers, &x_map, &w_map);
  if (threadIdx.x < kWarpgroup) {
    produce<T>(shape, ring, &x_map, &w_map, shared, tiles);
  } else {
    consume_narrow<T>(shape, ring, shared, tiles);
  }
#endif
}

}  // namespace deepinfer::kernels::linear_fp8
