// csrc/kernels/moe_gemm/cuda/w13.cu — gate and up projections with SwiGLU, routing weight and FP8
// quantisation in the epilogue; see moe_gemm.h. A warpgroup's tile is 32 gate and 32 up rows of the
// same channels, a thread holds both of its channel, and the 32 channels share one scale.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/moe_gemm/cuda/kernel.cuh"
#include "kernels/moe_gemm/cuda/moe_gemm.h"

namespace deepinfer::kernels::moe_gemm {
namespace {

__device__ __forceinline__ float through_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// The biased exponent of the scale of 32 channels whose largest magnitude is `largest`.
__device__ __forceinline__ std::uint32_t scale_code(float largest) {
  const std::uint32_t bits = __float_as_uint(fmaxf(largest, 1e-4f) * (1.0f / 448.0f));
  return (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
}

// A power of two: exact.
__device__ __forceinline__ float reciprocal(float power) {
  return __uint_as_float(0x7F000000u - __float_as_uint(power));
}

__device__ __forceinline__ float2 through_e4m3(float first, float second) {
  const __nv_fp8x2_storage_t codes =
      __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
}

struct SwigluQuantise {
  static constexpr int kPart = 32;  // tokens that pass through shared memory at a time

  template <int kTokens>
  struct Scratch {
    float largest[4][kTokens];  // of a warp's eight channels
    float weight[kTokens];      // routing weights, then reciprocal scales
    // 16 bytes a token more than needed, against bank conflicts.
    alignas(16) __nv_bfloat16 values[kTokens < kPart ? kTokens : kPart][32 + 8];
  };

  const float* routing;
  __nv_bfloat16* h;
  int channels;
  float limit;

  // Replaces gate sums by activations and finds the largest of each warp's channels.
  template <int kTokens, typename S>
  __device__ __forceinline__ void activate(float (&sum)[kTokens / 2], const Tile& tile,
                                           const Lane& lane, S& scratch) const {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int token = 8 * j + 2 * lane.q;
      const float2 weight = *reinterpret_cast<const float2*>(&scratch.weight[token]);
      float largest[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float gate = through_bf16(sum[4 * j + c] * tile.factor0);
        const float up = through_bf16(sum[4 * j + 2 + c] * tile.factor1);
        sum[4 * j + c] = swiglu(gate, up, limit) * (c == 0 ? weight.x : weight.y);
        largest[c] = fabsf(sum[4 * j + c]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          largest[c] = fmaxf(largest[c], __shfl_xor_sync(0xFFFFFFFFu, largest[c], step));
        }
      }
      if (lane.g == 0) {
        *reinterpret_cast<float2*>(&scratch.largest[lane.warp][token]) =
            make_float2(largest[0], largest[1]);
      }
    }
  }

  // One thread per token: the reciprocal of the scale of its 32 channels, a power of two.
  template <int kTokens, typename S>
  __device__ __forceinline__ void choose_scales(const Lane& lane, S& scratch) const {
    const int token = lane.thread;
    if (token >= kTokens) return;
    const float largest = fmaxf(fmaxf(scratch.largest[0][token], scratch.largest[1][token]),
                                fmaxf(scratch.largest[2][token], scratch.largest[3][token]));
    scratch.weight[token] = __uint_as_float((254u - scale_code(largest)) << 23);
  }

  // The activations of tokens 8 j to 8 j + 7, rounded to E4M3 at their scales, as bf16 rows.
  template <typename S>
  __device__ __forceinline__ void round(const float (&sum)[2], const Lane& lane, S& scratch, int j,
                                        int row) const {
    const float2 factor = *reinterpret_cast<const float2*>(&scratch.weight[8 * j + 2 * lane.q]);
    const float2 value = through_e4m3(sum[0] * factor.x, sum[1] * factor.y);
    __nv_bfloat16* to = &scratch.values[row + 2 * lane.q][8 * lane.warp + lane.g];
    to[0] = __float2bfloat16_rn(value.x * reciprocal(factor.x));
    to[sizeof(scratch.values[0]) / sizeof(to[0])] =
        __float2bfloat16_rn(value.y * reciprocal(factor.y));
  }

  template <int kTokens, typename S>
  __device__ __forceinline__ void store(float (&sum)[kTokens / 2], const Tile& tile,
                                        const Lane& lane, S& scratch) const {
    meet(tile.warpgroup);  // the tile before has left the scratch memory
    if (lane.thread < kTokens) {
      scratch.weight[lane.thread] =
          __ldg(routing + tile.first_row + min(lane.thread, tile.rows - 1));
    }
    meet(tile.warpgroup);
    activate<kTokens>(sum, tile, lane, scratch);
    meet(tile.warpgroup);
    choose_scales<kTokens>(lane, scratch);
    constexpr int kNow = kTokens < kPart ? kTokens : kPart;
#pragma unroll
    for (int part = 0; part < kTokens; part += kNow) {
      meet(tile.warpgroup);
#pragma unroll
      for (int j = part / 8; j < min(part + kNow, kTokens) / 8; ++j) {
        const float two[2] = {sum[4 * j], sum[4 * j + 1]};
        round(two, lane, scratch, j, 8 * j - part);
      }
      meet(tile.warpgroup);
      if (32 * tile.index >= channels) continue;  // a tile of padding
      for (int i = lane.thread; i < 4 * kNow; i += 128) {
        const int token = part + i / 4;
        if (token >= tile.rows) break;
        const std::int64_t row = tile.first_row + token;
        *reinterpret_cast<uint4*>(h + row * channels + 32 * tile.index + 8 * (i % 4)) =
            *reinterpret_cast<const uint4*>(&scratch.values[i / 4][8 * (i % 4)]);
      }
    }
  }
};

}  // namespace
}  // namespace deepinfer::kernels::moe_gemm

extern "C" int deepinfer_cuda_moe_gemm_w13(const void* x, const std::int32_t* offsets,
                                           const std::uint8_t* weight, const float* row_factor,
                                           const float* routing, void* h, float* sums,
                                           std::int32_t* flags, std::int64_t rows,
                                           std::int64_t experts, std::int64_t k,
                                           std::int64_t channels, std::int64_t blocks,
                                           std::int64_t tile, float limit, void* stream) {
  using namespace deepinfer::kernels::moe_gemm;
  if (channels < 32 || channels % 32 != 0) return cudaErrorInvalidValue;
  const Problem problem =
      problem_of(offsets, weight, row_factor, sums, flags, blocks, rows, experts, k, 2 * channels);
  if (!allowed(x, problem, rows, experts, k, 2 * channels, tile)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (!aligned(routing) || !aligned(h)) return cudaErrorInvalidValue;
  const SwigluQuantise epilogue{routing, static_cast<__nv_bfloat16*>(h), static_cast<int>(channels),
                                limit};
  return launch(x, problem, k, tile, epilogue, static_cast<cudaStream_t>(stream));
}
