// csrc/kernels/hopper/wgmma.cuh — what every wgmma needs: descriptors of operands in shared memory,
// and the order of calls. sm_90a only (the descriptor compiles anywhere).
//
// An operand's descriptor names rows of 128 bytes in the 128-byte swizzle: the 16-byte unit u of
// row r lies at unit u ^ (r % 8), eight rows make an atom of 1024 bytes that starts at a multiple
// of 1024, atoms follow one another. The next 32 bytes of the same rows are at the descriptor
// plus 2.
//
// Order: wgmma_fence(), any number of wgmmas, wgmma_commit(); then wgmma_wait<pending>() and
// wgmma_pin(d) before d is read.
#pragma once
#include <cstdint>

#include "kernels/hopper/mbarrier.cuh"

namespace deepinfer::kernels::hopper {

__device__ __forceinline__ std::uint64_t wgmma_descriptor(const void* shared) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kAtomBytes = std::uint64_t{1024 / 16} << 32;
  constexpr std::uint64_t kUnused = std::uint64_t{1} << 16;
  return kSwizzle128 | kAtomBytes | kUnused | (shared_address(shared) & 0x3FFFF) >> 4;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from reading `d` ahead of the wait.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::hopper
