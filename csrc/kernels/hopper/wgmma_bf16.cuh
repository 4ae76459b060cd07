// csrc/kernels/hopper/wgmma_bf16.cuh — the matrix instruction of one warpgroup for bf16 with fp32
// sums, both operands in shared memory in the 128-byte swizzle. sm_90a only; asynchronous:
// wgmma.cuh gives the order of calls and the descriptor of an operand whose rows run along the sum.
//
// Warp w of the warpgroup holds rows 16 w to 16 w + 15 of D: with g = lane / 4 and p = 2 * (lane %
// 4), d[4 i], d[4 i + 1] are (g, 8 i + p), (g, 8 i + p + 1), and d[4 i + 2], d[4 i + 3] the same of
// row g + 8.
#pragma once
#include <cstdint>

#include "kernels/hopper/wgmma.cuh"

namespace deepinfer::kernels::hopper {

// Descriptor of a B whose rows (of the sum) run along the result's columns: panels of 64 columns in
// the swizzle of wgmma.cuh, `panel_bytes` from one panel to the next; eight rows are 1024 bytes.
__device__ __forceinline__ std::uint64_t wgmma_descriptor_transposed(const void* shared,
                                                                     std::uint32_t panel_bytes) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kAtomBytes = std::uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kAtomBytes | std::uint64_t{panel_bytes >> 4} << 16 |
         (shared_address(shared) & 0x3FFFF) >> 4;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define DEEPINFER_EIGHT(i)                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// D[64, 64] = A[64, 16] B[64, 16]^T, plus D where `add`.
__device__ __forceinline__ void wgmma_bf16(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                           bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}"
      : DEEPINFER_EIGHT(0), DEEPINFER_EIGHT(8), DEEPINFER_EIGHT(16), DEEPINFER_EIGHT(24)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// D[64, 256] = A[64, 16] B[16, 256], plus D where `add`; B by wgmma_descriptor_transposed.
__device__ __forceinline__ void wgmma_bf16_transposed(float (&d)[128], std::uint64_t a,
                                                      std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, p, 1, 1, 0, 1;\n}"
      : DEEPINFER_EIGHT(0), DEEPINFER_EIGHT(8), DEEPINFER_EIGHT(16), DEEPINFER_EIGHT(24),
        DEEPINFER_EIGHT(32), DEEPINFER_EIGHT(40), DEEPINFER_EIGHT(48), DEEPINFER_EIGHT(56),
        DEEPINFER_EIGHT(64), DEEPINFER_EIGHT(72), DEEPINFER_EIGHT(80), DEEPINFER_EIGHT(88),
        DEEPINFER_EIGHT(96), DEEPINFER_EIGHT(104), DEEPINFER_EIGHT(112), DEEPINFER_EIGHT(120)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// D[64, 128] = A[64, 16] B[16, 128], plus D where `add`; B by wgmma_descriptor_transposed.
__device__ __forceinline__ void wgmma_bf16_transposed(float (&d)[64], std::uint64_t a,
                                                      std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 1;\n}"
      : DEEPINFER_EIGHT(0), DEEPINFER_EIGHT(8), DEEPINFER_EIGHT(16), DEEPINFER_EIGHT(24),
        DEEPINFER_EIGHT(32), DEEPINFER_EIGHT(40), DEEPINFER_EIGHT(48), DEEPINFER_EIGHT(56)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

#undef DEEPINFER_EIGHT

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::hopper
