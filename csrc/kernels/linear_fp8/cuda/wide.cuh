// csrc/kernels/linear_fp8/cuda/wide.cuh — the kernel of sm_90a for many rows: the rows of x are the
// rows of the matrix instruction.
//
// A consumer warpgroup owns 64 rows. It has one block's products computed (32 columns) while it
// adds the block before, times its scale, to the sums. That hides the latency of the tensor cores;
// their throughput it does not: docs/kernels/linear_fp8.md.
#pragma once
#include "kernels/hopper/wgmma_fp8.cuh"
#include "kernels/linear_fp8/cuda/ring.cuh"
#include "kernels/linear_fp8/cuda/store.cuh"

namespace deepinfer::kernels::linear_fp8 {

template <int kRowGroups, int kColumns>
struct Wide {
  static constexpr int kRows = 64 * kRowGroups;
  static constexpr int kOutputs = kColumns;
  static constexpr int kThreads = kWarpgroup * (kRowGroups + 1);
  static constexpr int kScaleBlocks = (kColumns + kBlock - 1) / kBlock;
  static constexpr int kScaleFloats = 4 * (kRows + kScaleBlocks);
  // Above 168 registers a thread the register file must be dealt out unevenly.
  static constexpr bool kDealRegisters = kRowGroups == 2 && kColumns == 128;
  static constexpr int kMinBlocks = 1;

  static __device__ __forceinline__ void put_x(float* stage, int row, const float4& scales) {
    reinterpret_cast<float4*>(stage)[row] = scales;
  }
  static __device__ __forceinline__ void put_w(float* stage, int block, const float4& scales) {
    reinterpret_cast<float4*>(stage)[kRows + block] = scales;
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kColumns>
__device__ __forceinline__ void issue(float (&part)[kColumns / 2], std::uint64_t x,
                                      std::uint64_t w) {
  wgmma_fence();
  wgmma_fp8(part, x, w);
  wgmma_commit();
}

// The factors of one block of products: for the upper and lower row of a lane, by 32 outputs.
template <int kScaleBlocks>
struct Factors {
  float upper[kScaleBlocks], lower[kScaleBlocks];
};

// The factors of two neighboring blocks, from the scales of this lane's upper row and of w.
template <int kScaleBlocks>
__device__ __forceinline__ void load_factors(Factors<kScaleBlocks> (&to)[2], std::uint32_t x,
                                             std::uint32_t w) {
  const float2 upper = load_two(x), lower = load_two(x + 8 * sizeof(float4));
#pragma unroll
  for (int i = 0; i < kScaleBlocks; ++i) {
    const float2 two = load_two(w + i * sizeof(float4));
    to[0].upper[i] = upper.x * two.x;
    to[0].lower[i] = lower.x * two.x;
    to[1].upper[i] = upper.y * two.y;
    to[1].lower[i] = lower.y * two.y;
  }
}

template <int kColumns, int kScaleBlocks>
__device__ __forceinline__ void promote(float (&sum)[kColumns / 2],
                                        const float (&part)[kColumns / 2],
                                        const Factors<kScaleBlocks>& by) {
  constexpr int kEights = kColumns < kBlock ? kColumns / 8 : kBlock / 8;  // of outputs, per factor
#pragma unroll
  for (int b = 0; b < kScaleBlocks; ++b) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int i = 4 * (b * kEights + e);
      sum[i] = fmaf(part[i], by.upper[b], sum[i]);
      sum[i + 1] = fmaf(part[i + 1], by.upper[b], sum[i + 1]);
      sum[i + 2] = fmaf(part[i + 2], by.lower[b], sum[i + 2]);
      sum[i + 3] = fmaf(part[i + 3], by.lower[b], sum[i + 3]);
    }
  }
}

// One warpgroup's sums over all steps of a tile.
//
// Two sets of partial sums take turns. No wgmma is under way across the back edge of the loop,
// where the compiler would serialize them all: a step's last block is complete when the step ends,
// and is added under the first wgmma of the next step.
template <typename T>
struct WideConsumer {
  static constexpr int kColumns = T::kOutputs;
  static constexpr std::uint32_t kScaleBytes = 4 * T::kScaleFloats;
  const Ring& ring;
  // Addresses in shared memory, of stage 0.
  std::uint32_t x_code, w_code, x_scale, w_scale, full, empty;
  Cursor at;
  float sum[kColumns / 2];
  float even[kColumns / 2], odd[kColumns / 2];
  Factors<T::kScaleBlocks> by[2];  // [1] outlives its step

  __device__ __forceinline__ void step() {
    mbarrier_wait_at(full + 8 * at.stage, at.parity);
    const std::uint32_t codes = at.stage * ring.stage_bytes, scales = at.stage * kScaleBytes;
    const std::uint64_t x = wgmma_descriptor_at(x_code + codes);
    const std::uint64_t w = wgmma_descriptor_at(w_code + codes);
    issue<kColumns>(even, x, w);
    promote<kColumns>(sum, odd, by[1]);
    issue<kColumns>(odd, x + 2, w + 2);
    load_factors(by, x_scale + scales, w_scale + scales);
    wgmma_wait<1>();
    wgmma_pin(even);
    promote<kColumns>(sum, even, by[0]);
    issue<kColumns>(even, x + 4, w + 4);
    wgmma_wait<1>();
    wgmma_pin(odd);
    promote<kColumns>(sum, odd, by[1]);
    issue<kColumns>(odd, x + 6, w + 6);
    load_factors(by, x_scale + scales + 8, w_scale + scales + 8);
    wgmma_wait<1>();
    wgmma_pin(even);
    promote<kColumns>(sum, even, by[0]);
    wgmma_wait<0>();
    wgmma_pin(odd);
    release();
  }

  __device__ __forceinline__ void release() {
    __syncwarp();
    mbarrier_arrive_at(empty + 8 * at.stage);
    at.next(ring.stages);
  }

  __device__ __forceinline__ void tile(int steps) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sum[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) odd[i] = 0.0f;
    by[1] = {};
#pragma unroll 1
    for (int i = 0; i < steps; ++i) step();
    promote<kColumns>(sum, odd, by[1]);
  }
};

template <typename T>
__device__ __forceinline__ void consume_wide(const Shape& shape, const Ring& ring,
                                             const Shared<T>& shared, int tiles) {
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup - 1, 0);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t row = keep(warpgroup * 64 + warp * 16 + lane / 4);
  const std::uint32_t scales = shared_address(shared.scales);
  WideConsumer<T> consumer{ring,
                           shared_address(shared.codes) + warpgroup * 64 * kStep,
                           shared_address(shared.codes) + ring.x_bytes(),
                           keep(scales + row * 16),
                           scales + T::kRows * 16,
                           shared_address(shared.barriers.full),
                           shared_address(shared.barriers.empty)};
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    consumer.tile(shape.steps());
    const Place where = place<T>(shape, tile);
    const int at = where.row + static_cast<int>(row);
    store_rows<T::kOutputs>(consumer.sum, shape.y, shape.y_is_fp32,
                            static_cast<std::int64_t>(at) * shape.n + where.output, shape.n,
                            shape.m - at, shape.group_outputs() - where.column, lane);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks)
    wide_kernel(const Shape shape, const Ring ring, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap w_map, int tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  __shared__ Barriers barriers;
  Shared<T> shared(dynamic, ring, barriers);
  open_ring<T>(barriers, &x_map, &w_map);
  if (threadIdx.x < kWarpgroup) {
    if constexpr (T::kDealRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce<T>(shape, ring, &x_map, &w_map, shared, tiles);
  } else {
    if constexpr (T::kDealRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume_wide<T>(shape, ring, shared, tiles);
  }
#endif
}

}  // namespace deepinfer::kernels::linear_fp8
