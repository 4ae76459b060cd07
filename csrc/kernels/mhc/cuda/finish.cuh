// csrc/kernels/mhc/cuda/finish.cuh — the kernel that knows whole rows: the next coefficients from
// the slices' sums, and RMSNorm with FP8 quantization of the collapsed streams, in place.
//
// The two jobs are different blocks of one grid. Coefficients come first, because their chain of
// divisions is the longest; then rows, last token first, because the projection wrote those last
// and they may still be in L2.
#pragma once
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/mhc/cuda/layout.cuh"

namespace deepinfer::kernels::mhc {

constexpr int kMixTokens = 16;  // of a block
constexpr int kFinishThreads = 640;
constexpr int kRowWords = kHidden / 8 / kFinishThreads;  // of eight channels, per thread

struct Finish {
  const float* partial;
  const float* base;
  const float* scale;
  const uint4* weight;
  float* pre;
  float* post;
  float* comb;
  uint4* y;  // collapsed streams in, normalized out
  uint2* codes;
  std::uint8_t* code_scales;
  int tokens;
  int iterations;
  float eps;
  float norm_eps;
};

__device__ __forceinline__ float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

// Every row and column of `c` to a sum near one, columns last.
__device__ __forceinline__ void sinkhorn(float (&c)[kStreams][kStreams], int iterations,
                                         float eps) {
  for (int step = 0; step < 2 * iterations - 1; ++step) {
    if (step % 2 == 0) {
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        const float factor = __fdividef(1.0f, ((c[0][k] + c[1][k]) + (c[2][k] + c[3][k])) + eps);
#pragma unroll
        for (int j = 0; j < kStreams; ++j) c[j][k] *= factor;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const float factor = __fdividef(1.0f, ((c[j][0] + c[j][1]) + (c[j][2] + c[j][3])) + eps);
#pragma unroll
        for (int k = 0; k < kStreams; ++k) c[j][k] *= factor;
      }
    }
  }
}

// One thread: the coefficients of one token from its sums.
__device__ __forceinline__ void coefficients(const Finish& op, const float* sums, int token) {
  const float mean = sums[kStreamSquares] * (1.0f / (kStreams * kHidden));
  const float norm = rsqrtf(mean + op.norm_eps);
  const auto z = [&](int row, int kind) {
    return fmaf(sums[row] * norm, __ldg(op.scale + kind), __ldg(op.base + row));
  };
  float c[kStreams][kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    float top = -INFINITY, total = 0.0f;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      c[j][k] = z(2 * kStreams + j * kStreams + k, 2);
      top = fmaxf(top, c[j][k]);
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      c[j][k] = expf(c[j][k] - top);
      total += c[j][k];
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) c[j][k] = c[j][k] / total + op.eps;
  }
  sinkhorn(c, op.iterations, op.eps);
  float pre[kStreams], post[kStreams];
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    pre[k] = sigmoid(z(k, 0)) + op.eps;
    post[k] = 2.0f * sigmoid(z(kStreams + k, 1));
  }
  reinterpret_cast<float4*>(op.pre)[token] = make_float4(pre[0], pre[1], pre[2], pre[3]);
  reinterpret_cast<float4*>(op.post)[token] = make_float4(post[0], post[1], post[2], post[3]);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    reinterpret_cast<float4*>(op.comb)[token * kStreams + j] =
        make_float4(c[j][0], c[j][1], c[j][2], c[j][3]);
  }
}

__device__ __forceinline__ void mix(const Finish& op, int first) {
  __shared__ float sums[kMixTokens][kStreamSquares + 2];
  for (int i = static_cast<int>(threadIdx.x); i < kMixTokens * (kStreamSquares + 1);
       i += kFinishThreads) {
    const int token = i / (kStreamSquares + 1), row = i % (kStreamSquares + 1);
    if (first + token >= op.tokens) break;
    const float* from = op.partial + std::int64_t{first + token} * kSlices * kPartialStride + row;
    float part[kSlices];
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) part[slice] = from[slice * kPartialStride];
    float sum = part[0];
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) sum += part[slice];
    sums[token][row] = sum;
  }
  __syncthreads();
  const int token = static_cast<int>(threadIdx.x);
  if (token < kMixTokens && first + token < op.tokens) {
    coefficients(op, sums[token], first + token);
  }
}

// Eight channels of a row: normalized, rounded, and coded with the scale of their four lanes' 32.
// All lanes take part; those with `wanted` false write nothing.
__device__ __forceinline__ void row_word(const Finish& op, std::int64_t token, int word,
                                         uint4 value, uint4 weight, float norm, bool wanted) {
  const std::uint32_t in[4] = {value.x, value.y, value.z, value.w};
  const std::uint32_t by[4] = {weight.x, weight.y, weight.z, weight.w};
  std::uint32_t out[4];
  float largest = 1e-4f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = pack(low(by[i]) * low(in[i]) * norm, high(by[i]) * high(in[i]) * norm);
    largest = fmaxf(largest, fmaxf(fabsf(low(out[i])), fabsf(high(out[i]))));
  }
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
  const std::uint32_t bits = __float_as_uint(largest * (1.0f / 448.0f));
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);  // biased
  const float inverse = __uint_as_float((254u - exponent) << 23);
  std::uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t two = __nv_cvt_float2_to_fp8x2(
        make_float2(low(out[i]) * inverse, high(out[i]) * inverse), __NV_SATFINITE, __NV_E4M3);
    codes[i / 2] |= two << 16 * (i % 2);
  }
  if (!wanted) return;
  op.y[token * (kHidden / 8) + word] = make_uint4(out[0], out[1], out[2], out[3]);
  op.codes[token * (kHidden / 8) + word] = make_uint2(codes[0], codes[1]);
  if (word % 4 == 0) {
    op.code_scales[token * kScales + word / 4] = static_cast<std::uint8_t>(exponent);
  }
}

// This thread's words of a collapsed row, and the share of one slice in the row's square.
struct Row {
  uint4 words[kRowWords];
  float square;
};

__device__ __forceinline__ Row read_row(const Finish& op, std::int64_t token) {
  const int thread = static_cast<int>(threadIdx.x);
  Row row;
#pragma unroll
  for (int i = 0; i < kRowWords; ++i) {
    row.words[i] = op.y[token * (kHidden / 8) + thread + i * kFinishThreads];
  }
  row.square =
      op.partial[(token * kSlices + thread % kSlices) * kPartialStride + kCollapsedSquares];
  return row;
}

// Rows `token`, `token` - `step`, ...; the next is on its way while one is worked on.
__device__ __forceinline__ void rows(const Finish& op, int token, int step) {
  const int thread = static_cast<int>(threadIdx.x);
  uint4 weight[kRowWords];
#pragma unroll
  for (int i = 0; i < kRowWords; ++i) weight[i] = __ldg(op.weight + thread + i * kFinishThreads);
  hopper::wait_for_kernels_ahead();
  Row next = read_row(op, token);
  for (; token >= 0; token -= step) {
    const Row row = next;
    if (token >= step) next = read_row(op, token - step);
    float sum = __shfl_sync(0xFFFFFFFFu, row.square, 0);
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) {
      sum += __shfl_sync(0xFFFFFFFFu, row.square, slice);
    }
    const float norm = rsqrtf(sum * (1.0f / kHidden) + op.norm_eps);
#pragma unroll
    for (int i = 0; i < kRowWords; ++i) {
      row_word(op, token, thread + i * kFinishThreads, row.words[i], weight[i], norm, true);
    }
  }
}

__global__ void __launch_bounds__(kFinishThreads, 2) finish_kernel(const Finish op) {
  const int mixes = (op.tokens + kMixTokens - 1) / kMixTokens;
  const int block = static_cast<int>(blockIdx.x);
  if (block < mixes) {
    hopper::wait_for_kernels_ahead();
    mix(op, block * kMixTokens);
  } else {
    rows(op, op.tokens - 1 - (block - mixes), static_cast<int>(gridDim.x) - mixes);
  }
}

}  // namespace deepinfer::kernels::mhc
