// csrc/kernels/hopper/mma_sync.cuh — the matrix instruction of one warp for bf16 with fp32 sums:
// D[16, 8] += A[16, 16] B[16, 8], A row-major and B column-major (both contiguous along the 16 that
// are summed over), and the loads of its fragments. sm_80 and later.
//
// With g = lane / 4 and p = 2 * (lane % 4), a lane holds of D the elements (g, p), (g, p + 1),
// (g + 8, p), (g + 8, p + 1).
#pragma once
#include <cstdint>

#include "kernels/hopper/mbarrier.cuh"

namespace deepinfer::kernels::hopper {

__device__ __forceinline__ void mma_bf16_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                                 std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 tiles of 16-bit elements; lane l gives the address of row l % 8 of tile l / 8. Tiles
// in the order (rows 0-7, first half), (rows 8-15, first half), (rows 0-7, second half), (rows
// 8-15, second half) are an A fragment.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(std::uint32_t& r0, std::uint32_t& r1,
                                            const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1)
               : "r"(shared_address(shared))
               : "memory");
}

}  // namespace deepinfer::kernels::hopper
