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

struct SwigluQuantise {
  template <int kTokens>
  struct Scratch {
    float largest[4][kTokens];  // of a warp's eight channels
    float weight[kTokens];      // routing weights, then reciprocal scales
    alignas(16) std::uint8_t codes[kTokens][32];
  };

  const float* routing;
  std::uint8_t* h;
  std::uint8_t* h_scale;
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

  // One thread per token: the scale of its 32 channels, and its reciprocal for the others.
  template <int kTokens, typename S>
  __device__ __forceinline__ void choose_scales(const Tile& tile, const Lane& lane,
                                                S& scratch) const {
    const int token = lane.thread;
    if (token >= min(kTokens, tile.rows)) return;
    const float largest = fmaxf(fmaxf(scratch.largest[0][token], scratch.largest[1][token]),
                                fmaxf(scratch.largest[2][token], scratch.largest[3][token]));
    const std::uint32_t code = scale_code(largest);
    scratch.weight[token] = __uint_as_float((254u - code) << 23);
    if (32 * tile.index >= channels) return;  // a tile of padding
    const std::int64_t row = tile.first_row + token;
    h_scale[row * (channels / 32) + tile.index] = static_cast<std::uint8_t>(code);
  }

  template <int kTokens, typename S>
  __device__ __forceinline__ void store(float (&sum)[kTokens / 2], const Tile& tile,
                                        const Lane& lane, S& scratch) const {
    if (lane.thread < kTokens) {
      scratch.weight[lane.thread] =
          __ldg(routing + tile.first_row + min(lane.thread, tile.rows - 1));
    }
    meet(tile.warpgroup);
    activate<kTokens>(sum, tile, lane, scratch);
    meet(tile.warpgroup);
    choose_scales<kTokens>(tile, lane, scratch);
    meet(tile.warpgroup);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int token = 8 * j + 2 * lane.q;
      const float2 factor = *reinterpret_cast<const float2*>(&scratch.weight[token]);
      std::uint8_t* to = &scratch.codes[token][8 * lane.warp + lane.g];
      to[0] = __nv_cvt_float_to_fp8(sum[4 * j] * factor.x, __NV_SATFINITE, __NV_E4M3);
      to[32] = __nv_cvt_float_to_fp8(sum[4 * j + 1] * factor.y, __NV_SATFINITE, __NV_E4M3);
    }
    meet(tile.warpgroup);
    if (32 * tile.index >= channels) return;
    for (int i = lane.thread; i < 2 * min(kTokens, tile.rows); i += 128) {
      const std::int64_t row = tile.first_row + i / 2;
      *reinterpret_cast<uint4*>(h + row * channels + 32 * tile.index + 16 * (i % 2)) =
          *reinterpret_cast<const uint4*>(&scratch.codes[i / 2][16 * (i % 2)]);
    }
  }
};

}  // namespace
}  // namespace deepinfer::kernels::moe_gemm

extern "C" int deepinfer_cuda_moe_gemm_w13(const std::uint8_t* x, const std::uint8_t* x_scale,
                                           const std::int32_t* offsets, const std::uint8_t* weight,
                                           const float* row_factor, const float* routing,
                                           std::uint8_t* h, std::uint8_t* h_scale,
                                           std::int64_t rows, std::int64_t experts, std::int64_t k,
                                           std::int64_t channels, std::int64_t folded,
                                           std::int64_t tile, float limit, void* stream) {
  using namespace deepinfer::kernels::moe_gemm;
  const Problem problem =
      problem_of(x_scale, offsets, weight, row_factor, rows, experts, k, 2 * channels);
  if (channels < 32 || channels % 32 != 0) return cudaErrorInvalidValue;
  if (!allowed(x, problem, rows, experts, k, 2 * channels, folded, tile)) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0) return cudaSuccess;
  if (!aligned(routing) || !aligned(h) || !aligned(h_scale)) return cudaErrorInvalidValue;
  const SwigluQuantise epilogue{routing, h, h_scale, static_cast<int>(channels), limit};
  return launch(x, problem, k, folded, tile, epilogue, static_cast<cudaStream_t>(stream));
}
