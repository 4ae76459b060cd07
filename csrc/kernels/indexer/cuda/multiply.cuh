// csrc/kernels/indexer/cuda/multiply.cuh — sums of 32 products, keys against the 32 heads of one
// query row, by the tensor cores.
//
// Keys are E4M3 in registers, queries E5M2 in shared memory: E2M1 codes times powers of two are
// exact in both. All terms of one sum share their power of two, so they are multiples of 1/4 up to
// 36 in those units and sums of 32 need 13 bits: exact on every tensor core. Sums of several groups
// would not be, so the four groups keep separate sums.
#pragma once
#include <cstdint>

#include "kernels/hopper/wgmma.cuh"

namespace deepinfer::kernels::indexer {

constexpr int kHeads = 32;
constexpr int kGroups = 4;                    // of 32 channels
constexpr int kGroupBytes = kHeads * 32;      // one group of a query row, as staged
constexpr int kHalfGroupBytes = kHeads * 16;  // 16 of its channels, contiguous per head
constexpr int kQueryBytes = kGroups * kGroupBytes;

// Of the 16 keys by 32 heads of a warp a lane holds, with g = lane / 4 and t = lane % 4, the sums
// [4 i + k] (key g, head 8 i + 2 t + k) and [4 i + 2 + k] (key g + 8, the same head).
using Sums = float[kGroups][16];
// [group][0..3]: key g and key g + 8 with channels "low" of word t, then both with "high".
using KeyFragments = std::uint32_t[kGroups][4];

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Eight heads by 16 bytes are contiguous; 512 bytes to the next 16 channels, 128 to the next heads.
__device__ __forceinline__ std::uint64_t staged_descriptor(const std::uint8_t* staged) {
  return std::uint64_t{128 / 16} << 32 | std::uint64_t{kHalfGroupBytes / 16} << 16 |
         (hopper::shared_address(staged) & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void multiply_group(float (&d)[16], const std::uint32_t (&a)[4],
                                               std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e5m2 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      " %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, add, 1, 1;\n}\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// By the four warps of a block together, each with its own keys.
__device__ __forceinline__ void multiply(Sums& sums, const KeyFragments& keys,
                                         const std::uint8_t* staged) {
  const std::uint64_t descriptor = staged_descriptor(staged);
  hopper::wgmma_fence();
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    multiply_group(sums[g], keys[g], descriptor + g * (kGroupBytes / 16));
  hopper::wgmma_commit();
  hopper::wgmma_wait<0>();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    hopper::wgmma_pin(sums[g]);
    // The instruction reads the keys until here.
    asm volatile("" ::"r"(keys[g][0]), "r"(keys[g][1]), "r"(keys[g][2]), "r"(keys[g][3]));
  }
}

#else

__device__ __forceinline__ void multiply(Sums& sums, const KeyFragments& keys,
                                         const std::uint8_t* staged) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint8_t* from = staged + g * kGroupBytes + i * 128 + lane * 4;
      const std::uint32_t low = *reinterpret_cast<const std::uint32_t*>(from);
      const std::uint32_t high = *reinterpret_cast<const std::uint32_t*>(from + kHalfGroupBytes);
      float* d = sums[g] + 4 * i;
      asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
          : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
          : "r"(keys[g][0]), "r"(keys[g][1]), "r"(keys[g][2]), "r"(keys[g][3]), "r"(low), "r"(high),
            "f"(0.0f));
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::indexer
