// csrc/kernels/hopper/cp_async.cuh — asynchronous copies of 16 bytes from global to shared memory,
// by the copying thread itself. A group's data is visible to that thread once it has waited for
// the group; to others after a barrier. sm_80 and later.
#pragma once
#include <cstdint>

#include "kernels/hopper/mbarrier.cuh"

namespace deepinfer::kernels::hopper {

// Both addresses are multiples of 16. Past the first-level cache. Where `inside` is false zeros are
// written and nothing is read.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool inside = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(inside ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's youngest groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace deepinfer::kernels::hopper
