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
    for (int i = 0; i < kTokens / 4; ++i) {
      const int at = 4 * (i / 2) + i % 2;
      const int token = 8 * (i / 2) + 2 * lane.q + i % 2;
      const float weight = __ldg(routing + tile.first_row + min(token, tile.rows - 1));
      const float gate = through_bf16(sum[at] * tile.factor0);
      const float up = through_bf16(sum[at + 2] * tile.factor1);
      sum[at] = swiglu(gate, up, limit) * weight;
      float largest = fabsf(sum[at]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
      }
      if (lane.g == 0) scratch.largest[lane.warp][token] = largest;
    }
  }

  template <int kTokens, typename S>
  __device__ __forceinline__ void store(float (&sum)[kTokens / 2], const Tile& tile,
                                        const Lane& lane, S& scratch) const {
    activate<kTokens>(sum, tile, lane, scratch);
    meet(tile.warpgroup);
    const bool inside = 32 * tile.index < channels;  // not a tile of padding
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      const int token = 8 * (i / 2) + 2 * lane.q + i % 2;
      const float largest = fmaxf(fmaxf(scratch.largest[0][token], scratch.largest[1][token]),
                                  fmaxf(scratch.largest[2][token], scratch.largest[3][token]));
      const std::uint32_t code = scale_code(largest);
      const float scaled = sum[4 * (i / 2) + i % 2] * __uint_as_float((254u - code) << 23);
      scratch.codes[token][8 * lane.warp + lane.g] =
          __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
      if (inside && lane.warp == 0 && lane.g == 0 && token < tile.rows) {
        const std::int64_t row = tile.first_row + token;
        h_scale[row * (channels / 32) + tile.index] = static_cast<std::uint8_t>(code);
      }
    }
    meet(tile.warpgroup);
    for (int i = lane.thread; inside && i < 2 * min(kTokens, tile.rows); i += 128) {
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
