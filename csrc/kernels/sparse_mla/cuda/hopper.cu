// csrc/kernels/sparse_mla/cuda/hopper.cu — see sparse_mla.h; wgmma, sm_90a only.
//
// A block takes tokens one after another, all its shared memory at once, in four warpgroups:
//   gather   makes tiles of 64 rows of 512 bf16, in two buffers (gather.cuh);
//   weigh    S = Q K^T, the softmax with a running maximum, weights P to shared memory (weigh.cuh);
//   sum      two of them, 256 channels each: O += P K, then scale, turn back, store (sum.cuh).
// A tile goes full -> weighed -> free, the last in four parts of 16 rows. The maximum is a
// reference that may lag by 2^8, so that sums are rescaled only where a score grows past that.
#include <algorithm>

#include "kernels/sparse_mla/cuda/gather.cuh"
#include "kernels/sparse_mla/cuda/pipeline.cuh"
#include "kernels/sparse_mla/cuda/sum.cuh"
#include "kernels/sparse_mla/cuda/weigh.cuh"

namespace deepinfer::kernels::sparse_mla {
namespace {

__global__ void __launch_bounds__(kThreads, 1) attend(const __grid_constant__ Problem problem) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  Shared& shared =
      *reinterpret_cast<Shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < 2; ++buffer) {
      mbarrier_init(&shared.full[buffer], kGroup);
      for (int part = 0; part < kParts; ++part)
        mbarrier_init(&shared.free[buffer][part], 2 * kGroup);
      mbarrier_init(&shared.weighed[buffer], kGroup);
    }
    mbarrier_init(&shared.finished, kGroup);
    mbarrier_init(&shared.taken, 2 * kGroup);
    mbarrier_init_fence();
  }
  __syncthreads();
  const int group = threadIdx.x / kGroup;
  if (group == 0) {
    give_registers<96>();
    gather_rows(problem, shared);
  } else if (group == 1) {
    give_registers<96>();
    weigh_scores(problem, shared);
  } else {
    take_registers<160>();
    sum_values(problem, shared, group - 2);
  }
#endif
}

constexpr int kSharedBytes = static_cast<int>(sizeof(Shared)) + 1024;

}  // namespace

cudaError_t launch_hopper(const Problem& problem, cudaStream_t stream) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  int units = 0;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess)
    return error;
  if (const cudaError_t error =
          cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
      error != cudaSuccess)
    return error;
  attend<<<static_cast<unsigned>(std::min(problem.tokens, units)), kThreads, kSharedBytes,
           stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace deepinfer::kernels::sparse_mla
