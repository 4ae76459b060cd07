// csrc/kernels/moe_gemm/cuda/combine.cu — adds the experts of a token in the order of choice, then
// the shared expert; see moe_gemm.h. Bound by memory: eight channels a thread, all rows in flight.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/moe_gemm/cuda/moe_gemm.h"

namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 8;  // channels of a thread
constexpr int kMostChoices = 16;
constexpr int kAhead = 8;  // rows loaded before the first is added

__device__ __forceinline__ void add(float (&sum)[kWidth], const uint4& bits) {
  const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += __uint_as_float(words[i] << 16);
    sum[2 * i + 1] += __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__global__ void __launch_bounds__(kThreads)
    combine(const uint4* __restrict__ parts, const int* __restrict__ positions,
            const uint4* __restrict__ shared, uint4* __restrict__ out, int choices, int units) {
  const int unit = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (unit >= units) return;
  const std::int64_t token = blockIdx.x;
  const uint4 last = shared[token * units + unit];
  float sum[kWidth] = {};
  for (int base = 0; base < choices; base += kAhead) {
    uint4 rows[kAhead];
    bool here[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = base + i < choices ? positions[token * choices + base + i] : -1;
      here[i] = row >= 0;
      if (here[i]) rows[i] = parts[static_cast<std::int64_t>(row) * units + unit];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (here[i]) add(sum, rows[i]);
    }
  }
  add(sum, last);
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    words[i] = static_cast<std::uint32_t>(__bfloat16_as_ushort(two.x)) |
               static_cast<std::uint32_t>(__bfloat16_as_ushort(two.y)) << 16;
  }
  out[token * units + unit] = make_uint4(words[0], words[1], words[2], words[3]);
}

bool aligned(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace

extern "C" int deepinfer_cuda_moe_combine(const void* parts, const std::int32_t* positions,
                                          const void* shared, void* out, std::int64_t rows,
                                          std::int64_t tokens, std::int64_t choices, std::int64_t d,
                                          void* stream) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  if (rows < 0 || tokens < 0 || tokens > 0x7FFFFFFF || d < kWidth || d > kMost) {
    return cudaErrorInvalidValue;
  }
  if (choices < 1 || choices > kMostChoices || d % kWidth != 0) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (rows > 0 && !aligned(parts)) return cudaErrorInvalidValue;
  if (!aligned(positions) || !aligned(shared) || !aligned(out)) return cudaErrorInvalidValue;
  const int units = static_cast<int>(d / kWidth);
  const dim3 grid(static_cast<unsigned>(tokens), (units + kThreads - 1) / kThreads);
  combine<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(parts), positions, static_cast<const uint4*>(shared),
      static_cast<uint4*>(out), static_cast<int>(choices), units);
  return cudaGetLastError();
}
