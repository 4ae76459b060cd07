// csrc/kernels/hopper/bulk_copy.cuh — asynchronous copies from global to shared memory by the copy
// engine; completion is counted in bytes on an mbarrier. sm_90 and later.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "kernels/hopper/mbarrier.cuh"

namespace deepinfer::kernels::hopper {

// A policy for data that is read once: such lines leave the L2 cache first.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ std::uint64_t evict_last_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// `bytes` contiguous bytes; both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, std::uint32_t bytes,
                                          std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// One box of a two-dimensional tensor map; `column` and `row` are in elements. Parts of the box
// outside the tensor arrive as zeros and count as bytes.
__device__ __forceinline__ void tensor_copy_2d(void* shared, const CUtensorMap* map, int column,
                                               int row, std::uint64_t* barrier,
                                               std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace deepinfer::kernels::hopper
