// bench/gpu_wgmma_fp8.cu — how FP8 wgmmas and fp32 additions share a
// multiprocessor; run by gpu_wgmma_fp8.py. Operands stay in shared memory: no
// loads, no barriers, only the arithmetic of 128 columns of the FP8 linear
// layer.
#include <cuda_runtime.h>

#include "kernels/hopper/wgmma_fp8.cuh"

using namespace deepinfer::kernels::hopper;

namespace {

constexpr int kRounds = 400, kBlocks = 132, kCodes = 96 * 1024;
enum Mode { kAddOnly, kBoth };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kColumns>
__device__ void add(float (&sum)[kColumns / 2], float (&part)[kColumns / 2],
                    float a, float b) {
  wgmma_pin(part);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i)
    sum[i] = fmaf(part[i], i % 4 < 2 ? a : b, sum[i]);
}

template <int kColumns>
__device__ void issue(float (&part)[kColumns / 2], std::uint64_t x,
                      std::uint64_t w) {
  wgmma_fence();
  wgmma_fp8(part, x, w);
  wgmma_commit();
}

#endif // __CUDA_ARCH_FEAT_SM90_ALL

// Four blocks of 32 columns, two sets of partial sums in turn.
template <int kColumns, Mode kMode>
__global__ void __launch_bounds__(kColumns == 128 ? 256 : 512, 1)
    rounds(const float *factors, float *out, long long *clocks) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  char *const codes = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  for (int i = threadIdx.x; i < kCodes; i += blockDim.x) {
    codes[i] = static_cast<char>((i * 7919 + i / 32 * 31) % 64 + i % 2 * 128);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float sum[kColumns / 2] = {}, even[kColumns / 2] = {}, odd[kColumns / 2] = {};
  const long long start = clock64();
#pragma unroll 1
  for (int i = 0; i < kRounds; ++i) {
    const std::uint64_t x = wgmma_descriptor(codes + i % 4 * 8192);
    const std::uint64_t w = wgmma_descriptor(codes + 32768 + i % 4 * 16384);
    const float a = factors[i + threadIdx.x % 32], b = factors[i + 64];
    if constexpr (kMode == kBoth) {
      issue<kColumns>(even, x, w);
      issue<kColumns>(odd, x + 2, w + 2);
      wgmma_wait<1>();
      add<kColumns>(sum, even, a, b);
      issue<kColumns>(even, x + 4, w + 4);
      wgmma_wait<1>();
      add<kColumns>(sum, odd, a, b);
      issue<kColumns>(odd, x + 6, w + 6);
      wgmma_wait<1>();
      add<kColumns>(sum, even, a, b);
      wgmma_wait<0>();
      add<kColumns>(sum, odd, a, b);
    } else {
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        if (block % 2 == 0) {
          add<kColumns>(sum, even, a, b);
        } else {
          add<kColumns>(sum, odd, a, b);
        }
      }
    }
  }
  const long long spent = clock64() - start;
  float total = 0.0f;
  for (int i = 0; i < kColumns / 2; ++i)
    total += sum[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = total;
  if (threadIdx.x == 0)
    clocks[blockIdx.x] = spent;
#endif
}

template <int kColumns, Mode kMode>
int run(const float *factors, float *out, long long *clocks, int warpgroups) {
  const auto kernel = rounds<kColumns, kMode>;
  const int bytes = kCodes + 1024;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       bytes);
  kernel<<<kBlocks, 128 * warpgroups, bytes>>>(factors, out, clocks);
  return cudaGetLastError();
}

} // namespace

// factors: 1024 floats; out: 132 * 512 floats; clocks: 132, cycles of 400
// rounds.
extern "C" int wgmma_fp8_rounds(const float *factors, float *out,
                                long long *clocks, int columns, int both,
                                int warpgroups) {
  if (columns == 16) {
    return both ? run<16, kBoth>(factors, out, clocks, warpgroups)
                : run<16, kAddOnly>(factors, out, clocks, warpgroups);
  }
  if (columns == 64) {
    return both ? run<64, kBoth>(factors, out, clocks, warpgroups)
                : run<64, kAddOnly>(factors, out, clocks, warpgroups);
  }
  return both ? run<128, kBoth>(factors, out, clocks, warpgroups)
              : run<128, kAddOnly>(factors, out, clocks, warpgroups);
}
