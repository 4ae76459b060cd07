// csrc/kernels/indexer/cuda/query.cuh — one query row from its packed form to what multiply.cuh
// reads: E5M2 codes in shared memory with the scales of the groups put in, relative to the largest
// of the head, and that one put into the head's weight.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/indexer/cuda/multiply.cuh"

namespace deepinfer::kernels::indexer {

constexpr int kKeyExponent = -6;    // keys are staged as E2M1 times 2^-6
constexpr int kQueryExponent = 13;  // query groups with the head's largest scale, times 2^13
constexpr int kScoreExponent = -6;  // (32 * 128)^-0.5
constexpr int kScaleBias = 127;
constexpr unsigned kLargestStep = 26;  // below it E5M2 would be subnormal

// The bytes of the E2M1 magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 as E5M2 times 2^(13 - step).
__device__ __forceinline__ uint2 magnitudes(unsigned step) {
  if (step > kLargestStep) return make_uint2(0, 0);
  const std::uint32_t half = (27 - step) << 2;  // 0.5: exponent alone
  return make_uint2(half * 0x01010100u + 0x06040000u, half * 0x01010101u + 0x0E0C0A08u);
}

struct Halves {
  std::uint32_t low;   // codes in low nibbles: even channels
  std::uint32_t high;  // odd channels
};

__device__ __forceinline__ Halves stage_word(std::uint32_t codes, uint2 table) {
  const std::uint32_t select = codes & 0x77777777u;
  const std::uint32_t first = __byte_perm(table.x, table.y, select & 0xFFFFu);
  const std::uint32_t second = __byte_perm(table.x, table.y, select >> 16);
  return {__byte_perm(first, second, 0x6420) | (codes << 4 & 0x80808080u),
          __byte_perm(first, second, 0x7531) | (codes & 0x80808080u)};
}

// By 128 threads, one for each group of each head. A barrier and the fence of the asynchronous
// proxy come after.
__device__ __forceinline__ void stage_query(std::uint8_t* staged, float* staged_weights,
                                            const std::uint8_t* query, const std::uint8_t* scale,
                                            float weight) {
  const unsigned head = threadIdx.x / kGroups, group = threadIdx.x % kGroups;
  const uint4 codes = reinterpret_cast<const uint4*>(query)[threadIdx.x];
  const std::uint32_t scales = reinterpret_cast<const std::uint32_t*>(scale)[head];
  const unsigned top =
      max(max(scales & 0xFF, scales >> 8 & 0xFF), max(scales >> 16 & 0xFF, scales >> 24));
  const uint2 table = magnitudes(top - (scales >> 8 * group & 0xFF));
  const Halves a = stage_word(codes.x, table), b = stage_word(codes.y, table);
  const Halves c = stage_word(codes.z, table), d = stage_word(codes.w, table);
  std::uint8_t* to = staged + group * kGroupBytes + head * 16;
  *reinterpret_cast<uint4*>(to) = make_uint4(a.low, b.low, c.low, d.low);
  *reinterpret_cast<uint4*>(to + kHalfGroupBytes) = make_uint4(a.high, b.high, c.high, d.high);
  constexpr int kExponents = kScaleBias + kKeyExponent + kQueryExponent - kScoreExponent;
  if (group == 0) staged_weights[head] = ldexpf(weight, static_cast<int>(top) - kExponents);
}

}  // namespace deepinfer::kernels::indexer
