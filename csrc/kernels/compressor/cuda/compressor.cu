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
  return __fdividef(__fmaf_rn(light, t, heavy), __fadd_rn(1.0f, t));  // by 1 to 2
}

// Four channels of a latent: quad q of `first`, the even token's, and of the odd one's.
__device__ uint2 latent_quad(const float4* __restrict__ gates, const float4* __restrict__ values,
                             std::int64_t first, int quads) {
  const float4 g0 = __ldg(gates + first), g1 = __ldg(gates + first + quads);
  const float4 v0 = __ldg(values + first), v1 = __ldg(values + first + quads);
  return make_uint2(pack_pair(blend(g0.x, g1.x, v0.x, v1.x), blend(g0.y, g1.y, v0.y, v1.y)),
                    pack_pair(blend(g0.z, g1.z, v0.z, v1.z), blend(g0.w, g1.w, v0.w, v1.w)));
}

__global__ void __launch_bounds__(kThreads)
    pair(const float4* __restrict__ gates, const float4* __restrict__ values,
         uint2* __restrict__ latent, unsigned count, unsigned quads) {
  const unsigned place = blockIdx.x * kThreads + threadIdx.x;
  if (place >= count) return;
  const unsigned group = place / quads, q = place - group * quads;
  latent[place] = latent_quad(gates, values, static_cast<std::int64_t>(group) * 2 * quads + q,
                              static_cast<int>(quads));
}

template <int kChunks>
__global__ void __launch_bounds__(kThreads)
    pair_entry(const float4* __restrict__ gates, const float4* __restrict__ values, RowSources from,
               uint4* __restrict__ normed, std::uint8_t* __restrict__ cache, CacheRow shape) {
  const std::int64_t group = token_of_warp(shape);
  if (group < 0) return;
  HeldRow<kChunks> row;
  load_sources(row, from, group, shape);
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = static_cast<int>(threadIdx.x) % kWarp + k * kWarp;
    row.chunk[k] = make_uint4(0, 0, 0, 0);
    if (c >= shape.channels / kChunk) continue;
    const int quads = shape.channels / 4;
    const std::int64_t first = group * 2 * quads + 2 * c;
    const uint2 low = latent_quad(gates, values, first, quads);
    const uint2 high = latent_quad(gates, values, first + 1, quads);
    row.chunk[k] = make_uint4(low.x, low.y, high.x, high.y);
  }
  store_entry(row, normed, cache, group, shape);
}

}  // namespace

extern "C" {

int deepinfer_cuda_compressor_pair(const void* gates, const void* values, void* latent,
                                   std::int64_t groups, std::int64_t channels, void* stream) {
  if (groups < 0 || channels <= 0 || channels % kChunk != 0 || channels > 1 << 20)
    return cudaErrorInvalidValue;
  if (groups == 0) return cudaSuccess;
  if (!usable(gates, values, latent)) return cudaErrorInvalidValue;
  const std::int64_t quads = channels / 4;
  if (groups > 0x7FFFFFFF / quads) return cudaErrorInvalidValue;
  const std::int64_t count = groups * quads;
  pair<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
         static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float4*>(gates), static_cast<const float4*>(values),
      static_cast<uint2*>(latent), static_cast<unsigned>(count), static_cast<unsigned>(quads));
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
                       size_of(channels),
                       size_of(pairs),
                       static_cast<int>(slots_are_int64 != 0),
                       eps};
  if (!allowed(shape, 64)) return cudaErrorInvalidValue;
  if (groups == 0) return cudaSuccess;
  if (!usable(gates, values, weight, positions, freqs, slots, cache) || !aligned(normed))
    return cudaErrorInvalidValue;
  const RowSources from{static_cast<const uint4*>(weight),
                        static_cast<const std::int64_t*>(positions),
                        static_cast<const float*>(freqs), slots};
  const auto run = [&](auto kernel) {
    kernel<<<blocks_for(groups), rows_per_block(groups) * kWarp, 0,
             static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float4*>(gates), static_cast<const float4*>(values), from,
        static_cast<uint4*>(normed), static_cast<std::uint8_t*>(cache), shape);
    return static_cast<int>(cudaGetLastError());
  };
  return channels <= 256 ? run(pair_entry<1>) : run(pair_entry<2>);
}

}  // extern "C"
