// csrc/kernels/linear_fp8/cuda/by_address.cuh — barriers, copies and loads by 32-bit address in
// shared memory: a stage's place is then one multiply-add, and no pointer is held in two registers.
// sm_90a.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace deepinfer::kernels::linear_fp8 {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void mbarrier_wait_at(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_at(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_expect_at(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void tensor_copy_2d_at(std::uint32_t to, const CUtensorMap* map,
                                                  int inner, int outer, std::uint32_t barrier,
                                                  std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(inner), "r"(outer), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tensor_copy_3d_at(std::uint32_t to, const CUtensorMap* map,
                                                  int inner, int middle, int outer,
                                                  std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(inner), "r"(middle), "r"(outer), "r"(barrier), "l"(policy)
      : "memory");
}

// True in one lane of a warp whose lanes are all here.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ std::uint64_t wgmma_descriptor_at(std::uint32_t shared) {
  constexpr std::uint64_t kFixed =
      std::uint64_t{1} << 62 | std::uint64_t{1024 / 16} << 32 | 1 << 16;
  return kFixed | shared >> 4;  // below 256 KB: 14 bits
}

__device__ __forceinline__ float2 load_two(std::uint32_t address) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address));
  return two;
}

// A value that the assembler keeps in a register: it would compute it again in every step, but does
// not see through a shuffle of each lane with itself.
__device__ __forceinline__ std::uint32_t keep(std::uint32_t value) {
  return __shfl_sync(~0u, value, static_cast<int>(threadIdx.x) % 32);
}

__device__ __forceinline__ std::uint64_t evict_normal_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::linear_fp8
