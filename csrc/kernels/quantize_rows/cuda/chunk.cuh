// csrc/kernels/quantize_rows/cuda/chunk.cuh — eight bf16 channels: the unit that row kernels move.
//
// A chunk is one 16-byte access. A row of C channels has C / 8 chunks; lane l of a warp owns chunks
// l, l + 32, l + 64, ... so that every access of a warp is contiguous.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace deepinfer::kernels::rows {

constexpr int kChunk = 8;  // channels
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ inline float low_half(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

__device__ inline void unpack(const uint4& chunk, float (&x)[kChunk]) {
  const std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = low_half(words[i]);
    x[2 * i + 1] = high_half(words[i]);
  }
}

__device__ inline std::uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(two.x)) |
         static_cast<std::uint32_t>(__bfloat16_as_ushort(two.y)) << 16;
}

__device__ inline uint4 pack(const float (&x)[kChunk]) {
  return make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]),
                    pack_pair(x[6], x[7]));
}

// The largest magnitude of a chunk. Magnitudes of bf16 order as unsigned 16-bit integers do.
__device__ inline float largest(const uint4& chunk) {
  constexpr std::uint32_t kMagnitudes = 0x7FFF7FFFu;
  const std::uint32_t two = __vmaxu2(__vmaxu2(chunk.x & kMagnitudes, chunk.y & kMagnitudes),
                                     __vmaxu2(chunk.z & kMagnitudes, chunk.w & kMagnitudes));
  return fmaxf(low_half(two), high_half(two));
}

// The largest over `kLanes` neighbouring lanes; every lane of the warp takes part.
template <int kLanes>
__device__ inline float largest_of_lanes(float value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

inline bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

// None is null and all are aligned.
template <typename... Pointers>
bool usable(const Pointers*... pointers) {
  return ((pointers != nullptr && aligned(pointers)) && ...);
}

}  // namespace deepinfer::kernels::rows
