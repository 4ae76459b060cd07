// csrc/kernels/router/cuda/router.cu — see router.h; any device from sm_90 on.
// With few tokens the gate's bytes are the bound: the width is split over blocks, each with all its
// loads under way at once. With many, a block sums the whole width. The sums are the same.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/router/cuda/choose.cuh"
#include "kernels/router/cuda/logits.cuh"
#include "kernels/router/cuda/router.h"

namespace {

using namespace deepinfer::kernels::router;  // NOLINT: the kernels of this file
using deepinfer::kernels::hopper::launch_dependent;

constexpr std::int64_t kMostExperts = 512;

// More shared memory than a kernel gets unasked, once per device; asking twice does no harm.
template <typename T>
cudaError_t allow_memory() {
  static std::atomic<std::uint64_t> allowed{0};
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(logits<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kBytes);
  if (error == cudaSuccess) allowed.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

template <typename T>
cudaError_t multiply(const Product& product, int parts, cudaStream_t stream) {
  if (const cudaError_t error = allow_memory<T>(); error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>((product.experts + T::kExperts - 1) / T::kExperts),
                  static_cast<unsigned>((product.tokens + T::kTokens - 1) / T::kTokens),
                  static_cast<unsigned>(parts));
  logits<T><<<grid, T::kThreads, T::kBytes, stream>>>(product);
  return cudaGetLastError();
}

cudaError_t multiply_any(const Product& product, int parts, bool split, cudaStream_t stream) {
  constexpr int kAll = kPartSteps + 1;
  if (!split && product.experts > 128)
    return multiply<Tile<192, 128, 6, 2, 4, false>>(product, 1, stream);
  if (!split) return multiply<Tile<128, 128, 4, 2, 4, false>>(product, 1, stream);
  if (product.tokens <= 16) return multiply<Tile<32, 16, 2, 2, kAll, true>>(product, parts, stream);
  if (product.tokens <= 64) return multiply<Tile<32, 64, 2, 2, kAll, true>>(product, parts, stream);
  if (product.tokens <= 256) return multiply<Tile<32, 64, 2, 2, 5, true>>(product, parts, stream);
  return multiply<Tile<128, 64, 4, 2, 4, true>>(product, parts, stream);
}

cudaError_t choose_any(const Choice& choice, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((choice.tokens + kChooseWarps - 1) / kChooseWarps));
  const dim3 block(32 * kChooseWarps);
  if (choice.experts <= 128) return launch_dependent(choose<4>, grid, block, 0, stream, choice);
  if (choice.experts <= 384) return launch_dependent(choose<12>, grid, block, 0, stream, choice);
  return launch_dependent(choose<16>, grid, block, 0, stream, choice);
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

extern "C" int deepinfer_cuda_router_route(const void* x, const void* gate, const float* bias,
                                           const float* image_bias, const std::uint8_t* image,
                                           float* work, std::int32_t* ids, float* weights,
                                           std::int32_t* offsets, std::int32_t* order,
                                           std::int64_t tokens, std::int64_t width,
                                           std::int64_t experts, std::int64_t k, std::int64_t first,
                                           std::int64_t count, std::int64_t parts, float scaling,
                                           void* stream) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30, kMostTokens = 65535 * 16;
  if (tokens < 0 || tokens > kMostTokens || width < 8 || width % 8 != 0 || width >= kMostRows)
    return cudaErrorInvalidValue;
  if (experts < 1 || experts > kMostExperts || k < 1 || k > std::min<std::int64_t>(experts, 32))
    return cudaErrorInvalidValue;
  if (first < 0 || count < 1 || first + count > experts || tokens * k >= kMostRows)
    return cudaErrorInvalidValue;
  const std::int64_t most = (width + kPart - 1) / kPart;
  if ((parts != 1 && parts != most) || parts > 65535) return cudaErrorInvalidValue;
  if (offsets == nullptr || !aligned(offsets)) return cudaErrorInvalidValue;
  const auto on = static_cast<cudaStream_t>(stream);
  if (tokens > 0) {
    if (x == nullptr || gate == nullptr || bias == nullptr || work == nullptr || ids == nullptr ||
        weights == nullptr || order == nullptr || (image != nullptr && image_bias == nullptr))
      return cudaErrorInvalidValue;
    for (const void* pointer :
         {x, gate, static_cast<const void*>(work), static_cast<const void*>(ids),
          static_cast<const void*>(weights), static_cast<const void*>(order)})
      if (!aligned(pointer)) return cudaErrorInvalidValue;
    const Product product{static_cast<const __nv_bfloat16*>(x),
                          static_cast<const __nv_bfloat16*>(gate),
                          work,
                          static_cast<int>(tokens),
                          static_cast<int>(width),
                          static_cast<int>(experts)};
    const bool split = parts == most;
    if (const auto error = multiply_any(product, static_cast<int>(parts), split, on);
        error != cudaSuccess)
      return error;
    const Choice choice{work,
                        bias,
                        image_bias,
                        image,
                        ids,
                        weights,
                        product.tokens,
                        product.experts,
                        static_cast<int>(k),
                        static_cast<int>(parts),
                        scaling};
    if (const auto error = choose_any(choice, on); error != cudaSuccess) return error;
  }
  const Sorting sorting{ids,
                        offsets,
                        order,
                        static_cast<int>(tokens * k),
                        static_cast<int>(first),
                        static_cast<int>(count)};
  const dim3 grid(static_cast<unsigned>((count + kSortExperts - 1) / kSortExperts));
  return launch_dependent(sort_rows, grid, dim3(32 * kSortWarps), 0, on, sorting);
}
