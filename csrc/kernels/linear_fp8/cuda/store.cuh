// csrc/kernels/linear_fp8/cuda/store.cuh — finished sums of a warp to global memory.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace deepinfer::kernels::linear_fp8 {

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(two.y)) << 16 |
         static_cast<std::uint32_t>(__bfloat16_as_ushort(two.x));
}

// Four lanes hold a 4 x 4 matrix, lane q its column q; afterwards lane q holds row q.
__device__ __forceinline__ uint4 transpose_quad(uint4 v, int q) {
  const bool odd = (q & 1) != 0, upper = (q & 2) != 0;
  const std::uint32_t low = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1);
  const std::uint32_t high = __shfl_xor_sync(~0u, odd ? v.z : v.w, 1);
  (odd ? v.x : v.y) = low;
  (odd ? v.z : v.w) = high;
  const std::uint32_t first = __shfl_xor_sync(~0u, upper ? v.x : v.z, 2);
  const std::uint32_t second = __shfl_xor_sync(~0u, upper ? v.y : v.w, 2);
  return upper ? make_uint4(first, second, v.z, v.w) : make_uint4(v.x, v.y, first, second);
}

// The sums of 64 x kColumns outputs of a warpgroup (the layout of wgmma_fp8.cuh) for row `row` and
// the row eight below; `y` points to (row, first column of the tile), `left` columns may be
// written.
template <int kColumns>
__device__ __forceinline__ void store_rows(const float (&sum)[kColumns / 2], void* y, int y_is_fp32,
                                           std::int64_t at, int n, int rows_left, int left,
                                           int lane) {
  const int q = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool inside = half * 8 < rows_left;
    const std::int64_t line = at + static_cast<std::int64_t>(half) * 8 * n;
    if (y_is_fp32 != 0) {
      float* const to = static_cast<float*>(y) + line + 2 * q;
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const float2 two = make_float2(sum[4 * i + 2 * half], sum[4 * i + 2 * half + 1]);
        if (inside && 8 * i < left) *reinterpret_cast<float2*>(to + 8 * i) = two;
      }
    } else if constexpr (kColumns % 32 == 0) {
      __nv_bfloat16* const to = static_cast<__nv_bfloat16*>(y) + line + 8 * q;
#pragma unroll
      for (int i = 0; i < kColumns / 8; i += 4) {
        const float* const s = sum + 4 * i + 2 * half;
        const uint4 mine = make_uint4(pack_bf16(s[0], s[1]), pack_bf16(s[4], s[5]),
                                      pack_bf16(s[8], s[9]), pack_bf16(s[12], s[13]));
        const uint4 eight = transpose_quad(mine, q);
        if (inside && 8 * i < left) *reinterpret_cast<uint4*>(to + 8 * i) = eight;
      }
    } else {
      __nv_bfloat16* const to = static_cast<__nv_bfloat16*>(y) + line + 2 * q;
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const std::uint32_t two = pack_bf16(sum[4 * i + 2 * half], sum[4 * i + 2 * half + 1]);
        if (inside && 8 * i < left) *reinterpret_cast<std::uint32_t*>(to + 8 * i) = two;
      }
    }
  }
}

// An 8 x 8 matrix of 16-bit elements in a warp: lane l holds two neighbors of row l / 4.
__device__ __forceinline__ std::uint32_t transpose_eight(std::uint32_t two) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
  return out;
}

// The sums of a warp's 16 outputs (rows of the instruction) for kTokens rows of y.
template <int kTokens>
__device__ __forceinline__ void store_columns(const float (&sum)[kTokens / 2], void* y,
                                              int y_is_fp32, int row, int output, int n, int m,
                                              int lane) {
#pragma unroll
  for (int i = 0; i < kTokens / 8; ++i) {
    const float* const s = sum + 4 * i;
    if (y_is_fp32 != 0) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = row + 8 * i + 2 * (lane % 4) + e % 2;
        float* const to = static_cast<float*>(y) + static_cast<std::int64_t>(at) * n + output;
        if (at < m) to[lane / 4 + e / 2 * 8] = s[e];
      }
    } else {
      const int at = row + 8 * i + lane / 4;
      __nv_bfloat16* const to =
          static_cast<__nv_bfloat16*>(y) + static_cast<std::int64_t>(at) * n + output;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t two = transpose_eight(pack_bf16(s[2 * half], s[2 * half + 1]));
        if (at < m) *reinterpret_cast<std::uint32_t*>(to + half * 8 + 2 * (lane % 4)) = two;
      }
    }
  }
}

}  // namespace deepinfer::kernels::linear_fp8
