// csrc/kernels/hopper/cluster.cuh — blocks of one cluster: who am I, meet the others, read their
// shared memory. sm_90 and later.
#pragma once
#include <cstdint>

#include "kernels/hopper/mbarrier.cuh"

namespace deepinfer::kernels::hopper {

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of every block of the cluster: what was written before is visible after.
__device__ __forceinline__ void cluster_sync() {
  __syncwarp();  // the instructions below are of whole warps
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// The two halves of cluster_sync, with work between them.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address, in the cluster's window, of `shared` as it lies in block `rank`.
__device__ __forceinline__ std::uint32_t remote_address(const void* shared, std::uint32_t rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(shared)), "r"(rank));
  return address;
}

__device__ __forceinline__ std::uint32_t load_remote_u32(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// Raises a word of another block, or of this one; nothing else is ordered by it.
__device__ __forceinline__ void raise_remote_u32(std::uint32_t address, std::uint32_t value) {
  asm volatile("red.relaxed.cluster.shared::cluster.max.u32 [%0], %1;" ::"r"(address), "r"(value)
               : "memory");
}

}  // namespace deepinfer::kernels::hopper
