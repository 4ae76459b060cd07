// csrc/kernels/hopper/tensor_copy_3d.cuh — one box of a three-dimensional tensor map, as
// tensor_copy_2d of bulk_copy.cuh: coordinates in elements, innermost first; what lies outside the
// tensor arrives as zeros and counts as bytes. sm_90 and later.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "kernels/hopper/mbarrier.cuh"

namespace deepinfer::kernels::hopper {

__device__ __forceinline__ void tensor_copy_3d(void* shared, const CUtensorMap* map, int inner,
                                               int middle, int outer, std::uint64_t* barrier,
                                               std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(inner), "r"(middle), "r"(outer), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

}  // namespace deepinfer::kernels::hopper
