// csrc/kernels/moe_gemm/cuda/fragment.cuh — from packed E2M1 codes to the E4M3 fragments of a
// matrix instruction, and that instruction: wgmma on sm_90a, mma.sync elsewhere.
#pragma once
#include "kernels/hopper/wgmma.cuh"
#include "kernels/hopper/wgmma_fp8_registers.cuh"
#include "kernels/moe_gemm/cuda/layout.cuh"

namespace deepinfer::kernels::moe_gemm {

__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high,
                                                       std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
}

// The E4M3 codes of the eight E2M1 magnitudes times a power of two: bytes 0 to 3 and 4 to 7. With
// `code` 8 * (exponent + 6) they are 0, code, code + 8, + 12, + 16, + 20, + 24, + 28: the step from
// 0.5 to 1 is one binade, later steps are half a binade.
struct Magnitudes {
  std::uint32_t low;
  std::uint32_t high;
};

__device__ __forceinline__ Magnitudes magnitudes(std::uint32_t code) {
  return {code * 0x01010100u + 0x0C080000u, code * 0x01010101u + 0x1C181410u};
}

constexpr std::uint32_t kUnitCode = 48;  // exponent 0

// Eight weights: four E4M3 codes each of the first and the second half of the group.
__device__ __forceinline__ void decode(std::uint32_t word, const Magnitudes& table,
                                       std::uint32_t& first, std::uint32_t& second) {
  const std::uint32_t selectors = word & 0x77777777u;
  first = permute_bytes(table.low, table.high, selectors) | (word & 0x80808080u);
  second = permute_bytes(table.low, table.high, selectors >> 16) | (word << 4 & 0x80808080u);
}

// kCount floats of shared memory, issued here: the compiler would load them after the next wait.
template <int kCount>
__device__ __forceinline__ void load_early(float (&values)[kCount], std::uint32_t address) {
#pragma unroll
  for (int i = 0; i + 4 <= kCount; i += 4) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values[i]), "=f"(values[i + 1]), "=f"(values[i + 2]), "=f"(values[i + 3])
                 : "r"(address + 4 * i));
  }
  if constexpr (kCount % 4 == 2) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(values[kCount - 2]), "=f"(values[kCount - 1])
                 : "r"(address + 4 * (kCount - 2)));
  }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
using hopper::wgmma_pin_registers;

// Starts D = A B of group `step` of a chunk; the registers belong to it until finish<> says so.
template <int kTokens>
__device__ __forceinline__ void start(float (&d)[kTokens / 2], std::uint32_t (&a)[4],
                                      std::uint32_t tokens, int step) {
  constexpr std::uint64_t kLayout =
      std::uint64_t{1} << 62 | std::uint64_t{1024 / 16} << 32 | std::uint64_t{1} << 16;
  hopper::wgmma_fence();
  hopper::wgmma_fp8_registers<false>(d, a, kLayout | ((tokens >> 4) + 2 * step));
  hopper::wgmma_commit();
}

// Until at most kPending later products run.
template <int kPending, int kCount>
__device__ __forceinline__ void finish(float (&d)[kCount], std::uint32_t (&a)[4]) {
  hopper::wgmma_wait_registers<kPending>();
  wgmma_pin_registers(d);
  wgmma_pin_registers(a);
}

#else

__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

template <int kTokens>
__device__ __forceinline__ void start(float (&d)[kTokens / 2], std::uint32_t (&a)[4],
                                      std::uint32_t tokens, int step) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int q = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const std::uint32_t row = tokens + (8 * j + g) * kChunk + 4 * q;
    const std::uint32_t b0 = load_shared_word(row + ((2 * step) ^ g) * 16);
    const std::uint32_t b1 = load_shared_word(row + ((2 * step + 1) ^ g) * 16);
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[4 * j]), "=f"(d[4 * j + 1]), "=f"(d[4 * j + 2]), "=f"(d[4 * j + 3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  }
}

template <int kPending, int kCount>
__device__ __forceinline__ void finish(float (&)[kCount], std::uint32_t (&)[4]) {}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::moe_gemm
