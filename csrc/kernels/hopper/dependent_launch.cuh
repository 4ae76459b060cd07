// csrc/kernels/hopper/dependent_launch.cuh — a kernel that starts before the one ahead of it in the
// stream has ended. sm_90 and later; both calls do nothing in a kernel launched the ordinary way.
#pragma once
#include <cuda_runtime.h>

namespace deepinfer::kernels::hopper {

// Lets the next kernel be scheduled once every block has called this or ended.
__device__ __forceinline__ void allow_dependent_launch() {
  asm volatile("griddepcontrol.launch_dependents;");
}

// Waits until the kernels ahead have ended and their writes are visible.
__device__ __forceinline__ void wait_for_kernels_ahead() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// A launch that may begin as soon as the kernel ahead allows it.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                             std::size_t shared_bytes, cudaStream_t stream,
                             Arguments&&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace deepinfer::kernels::hopper
