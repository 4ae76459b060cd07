// csrc/kernels/compressor/cuda/compressor.cu — see compressor.h. Bound by memory: 16 bytes in and 2
// out a channel of a latent; the fused form saves the latent's way to memory and back.
#include "kernels/compressor/cuda/compressor.h"
#include "kernels/quantize_rows/cuda/cache_row.cuh"

namespace {

using namespace deepinfer::kernels::rows;

constexpr int kThreads = 128;

__device__ float blend(float gate0, float gate1, float value0, float value1) {
  const float t = expf(-fabsf(__fsub_rn(gate0, gate1)));
  const float heavy = gate1 > gate0 ? value1 : value0, light = gate1 > gate0 ? value0 : value1;
  return __fdiv_rn(__fmaf_rn(light, t, heavy), __fadd_rn(1.0f, t));
}

// Chunk c of latent `group`; quads is C / 4.
__device__ uint4 latent_chunk(const float4* __restrict__ gates, const float4* __restrict__ values,
                              std::int64_t group, int c, int quads) {
  const std::int64_t first = 2 * group * quads + 2 * c, second = first + quads;
  const float4 g0[2] = {__ldcs(gates + first), __ldcs(gates + first + 1)};
  const float4 g1[2] = {__ldcs(gates + second), __ldcs(gates + second + 1)};
  const float4 v0[2] = {__ldcs(values + first), __ldcs(values + first + 1)};
  const float4 v1[2] = {__ldcs(values + second), __ldcs(values + second + 1)};
  float out[kChunk];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[4 * i] = blend(g0[i].x, g1[i].x, v0[i].x, v1[i].x);
    out[4 * i + 1] = blend(g0[i].y, g1[i].y, v0[i].y, v1[i].y);
    out[4 * i + 2] = blend(g0[i].z, g1[i].z, v0[i].z, v1[i].z);
    out[4 * i + 3] = blend(g0[i].w, g1[i].w, v0[i].w, v1[i].w);
  }
  return pack(out);
}

__global__ void __launch_bounds__(kThreads)
    pair(const float4* __restrict__ gates, const float4* __restrict__ values,
         uint4* __restrict__ latent, std::int64_t chunks, int per_row) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= chunks) return;
  const std::int64_t group = place / per_row;
  const int c = static_cast<int>(place - group * per_row);
  latent[place] = latent_chunk(gates, values, group, c, 2 * per_row);
}

template <int kChunks>
__global__ void __launch_bounds__(kThreads)
    pair_entry(const float4* __restrict__ gates, const float4* __restrict__ values,
               const uint4* __restrict__ weight, const std::int64_t* __restrict__ positions,
               const float* __restrict__ freqs, const void* __restrict__ slots,
               uint4* __restrict__ normed, std::uint8_t* __restrict__ cache, CacheRow shape) {
  const std::int64_t group = token_of_warp(shape);
  if (group < 0) return;
  uint4 chunk[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = static_cast<int>(threadIdx.x) % kWarp + k * kWarp;
    chunk[k] = c < shape.channels / kChunk
                   ? latent_chunk(gates, values, group, c, shape.channels / 4)
                   : make_uint4(0, 0, 0, 0);
  }
  store_entry(chunk, weight, positions, freqs, slots, normed, cache, group, shape);
}

}  // namespace

extern "C" {

int deepinfer_cuda_compressor_pair(const void* gates, const void* values, void* latent,
                                   std::int64_t groups, std::int64_t channels, void* stream) {
  if (groups < 0 || channels <= 0 || channels % kChunk != 0 || channels > 1 << 20)
    return cudaErrorInvalidValue;
  if (groups == 0) return cudaSuccess;
  if (!usable(gates, values, latent)) return cudaErrorInvalidValue;
  const std::int64_t chunks = groups * (channels / kChunk);
  const std::int64_t blocks = (chunks + kThreads - 1) / kThreads;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidValue;
  pair<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float4*>(gates), static_cast<const float4*>(values),
      static_cast<uint4*>(latent), chunks, static_cast<int>(channels) / kChunk);
  return cudaGetLastError();
}

int deepinfer_cuda_compressor_pair_entry(const void* gates, const void* values, const void* weight,
                                         const void* positions, const void* freqs,
                                         const void* slots, void* normed, void* cache,
                                         std::int64_t groups, std::int64_t channels,
                                         std::int64_t pairs, std::int64_t records,
                                         std::int64_t slots_are_int64, float eps, void* stream) {
  const CacheRow shape{groups,
                       records,
                       static_cast<int>(channels),
                       static_cast<int>(pairs),
                       static_cast<int>(slots_are_int64 != 0),
                       eps};
  if (!allowed(shape, 64)) return cudaErrorInvalidValue;
  if (groups == 0) return cudaSuccess;
  if (!usable(gates, values, weight, positions, freqs, slots, cache) || !aligned(normed))
    return cudaErrorInvalidValue;
  const auto run = [&](auto kernel) {
    kernel<<<blocks_for(groups), rows_per_block(groups) * kWarp, 0,
             static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float4*>(gates), static_cast<const float4*>(values),
        static_cast<const uint4*>(weight), static_cast<const std::int64_t*>(positions),
        static_cast<const float*>(freqs), slots, static_cast<uint4*>(normed),
        static_cast<std::uint8_t*>(cache), shape);
    return static_cast<int>(cudaGetLastError());
  };
  return channels <= 256 ? run(pair_entry<1>) : run(pair_entry<2>);
}

}  // extern "C"
