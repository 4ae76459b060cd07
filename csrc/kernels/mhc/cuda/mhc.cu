// csrc/kernels/mhc/cuda/mhc.cu — the launchers of mhc.h. Two kernels rather than one in which the
// blocks of a token meet: see docs/kernels/mhc.md for what each costs.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>

#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/mhc/cuda/finish.cuh"
#include "kernels/mhc/cuda/mhc.h"
#include "kernels/mhc/cuda/project.cuh"

namespace deepinfer::kernels::mhc {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 20;
constexpr std::int64_t kMaxIterations = std::int64_t{1} << 20;
constexpr int kMaxDevices = 64;
constexpr int kRowBlocksPerProcessor = 2;  // as many as its registers hold

bool usable(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  });
}

// The processors of the current device; raises the kernel's limit of shared memory the first time.
// Racing threads find the same.
template <bool kExpand>
cudaError_t prepare(int* processors) {
  static std::atomic<int> known[kMaxDevices];
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device >= kMaxDevices) return cudaErrorInvalidDevice;
  if (known[device].load() == 0) {
    int count = 0;
    cudaError_t error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    error =
        cudaFuncSetAttribute(project_kernel<kExpand>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(ProjectShared));
    if (error != cudaSuccess) return error;
    known[device].store(count);
  }
  *processors = known[device].load();
  return cudaSuccess;
}

// Checks what both entries take, and launches the two kernels.
template <bool kExpand>
int launch(Project project, Finish finish, std::int64_t tokens, std::int64_t iterations,
           void* on_stream) {
  if (tokens < 0 || tokens > kMaxTokens || iterations < 1) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable({project.streams, project.pre, project.fn, project.partial, finish.base, finish.scale,
               finish.weight, finish.pre, finish.post, finish.comb, finish.y, finish.codes,
               finish.code_scales})) {
    return cudaErrorInvalidValue;
  }
  project.tokens = finish.tokens = static_cast<int>(tokens);
  finish.iterations = static_cast<int>(std::min(iterations, kMaxIterations));
  project.collapsed = reinterpret_cast<std::uint8_t*>(finish.y);
  finish.partial = project.partial;
  int processors = 0;
  if (const cudaError_t error = prepare<kExpand>(&processors); error != cudaSuccess) return error;
  const int tiles = (project.tokens + kTile - 1) / kTile;
  const int strips = std::min(std::max(1, processors / kSlices), tiles);
  const dim3 grid(kSlices, static_cast<unsigned>(strips));
  const auto stream = static_cast<cudaStream_t>(on_stream);
  project_kernel<kExpand><<<grid, kThreads, sizeof(ProjectShared), stream>>>(project);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const int mixes = (finish.tokens + kMixTokens - 1) / kMixTokens;
  const int rows = std::min(kRowBlocksPerProcessor * processors, finish.tokens);
  return hopper::launch_dependent(finish_kernel, dim3(static_cast<unsigned>(mixes + rows)),
                                  dim3(kFinishThreads), 0, stream, finish);
}

Finish finish_of(const float* base, const float* scale, const void* weight, float* next_pre,
                 float* next_post, float* next_comb, void* y, std::uint8_t* codes,
                 std::uint8_t* code_scales, float eps, float norm_eps) {
  Finish finish{};
  finish.base = base;
  finish.scale = scale;
  finish.weight = static_cast<const uint4*>(weight);
  finish.pre = next_pre;
  finish.post = next_post;
  finish.comb = next_comb;
  finish.y = static_cast<uint4*>(y);
  finish.codes = reinterpret_cast<uint2*>(codes);
  finish.code_scales = code_scales;
  finish.eps = eps;
  finish.norm_eps = norm_eps;
  return finish;
}

}  // namespace
}  // namespace deepinfer::kernels::mhc

namespace mhc = deepinfer::kernels::mhc;

extern "C" {

int deepinfer_cuda_mhc_boundary(const void* x, const void* streams, const float* post,
                                const float* comb, const float* pre, const void* fn,
                                const float* base, const float* scale, const void* weight,
                                void* new_streams, float* next_pre, float* next_post,
                                float* next_comb, void* y, std::uint8_t* codes,
                                std::uint8_t* code_scales, float* partial, std::int64_t tokens,
                                std::int64_t iterations, float eps, float norm_eps, void* stream) {
  if (tokens > 0 && !mhc::usable({x, post, comb, new_streams})) return cudaErrorInvalidValue;
  mhc::Project project{};
  project.x = static_cast<const std::uint8_t*>(x);
  project.streams = static_cast<const std::uint8_t*>(streams);
  project.post = post;
  project.comb = comb;
  project.pre = pre;
  project.fn = static_cast<const uint4*>(fn);
  project.new_streams = static_cast<std::uint8_t*>(new_streams);
  project.partial = partial;
  return mhc::launch<true>(project,
                           mhc::finish_of(base, scale, weight, next_pre, next_post, next_comb, y,
                                          codes, code_scales, eps, norm_eps),
                           tokens, iterations, stream);
}

int deepinfer_cuda_mhc_site(const void* streams, const float* pre, const void* fn,
                            const float* base, const float* scale, const void* weight,
                            float* next_pre, float* next_post, float* next_comb, void* y,
                            std::uint8_t* codes, std::uint8_t* code_scales, float* partial,
                            std::int64_t tokens, std::int64_t iterations, float eps, float norm_eps,
                            void* stream) {
  mhc::Project project{};
  project.streams = static_cast<const std::uint8_t*>(streams);
  project.pre = pre;
  project.fn = static_cast<const uint4*>(fn);
  project.partial = partial;
  return mhc::launch<false>(project,
                            mhc::finish_of(base, scale, weight, next_pre, next_post, next_comb, y,
                                           codes, code_scales, eps, norm_eps),
                            tokens, iterations, stream);
}

}  // extern "C"
