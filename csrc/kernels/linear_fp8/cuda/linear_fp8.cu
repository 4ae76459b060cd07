// csrc/kernels/linear_fp8/cuda/linear_fp8.cu — see linear_fp8.h: checks, choice of a kernel,
// launch.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "kernels/hopper/tensor_map_3d.h"
#include "kernels/linear_fp8/cuda/linear_fp8.h"
#include "kernels/linear_fp8/cuda/narrow.cuh"
#include "kernels/linear_fp8/cuda/plan.h"
#include "kernels/linear_fp8/cuda/portable.cuh"
#include "kernels/linear_fp8/cuda/wide.cuh"

namespace deepinfer::kernels::linear_fp8 {
namespace {

constexpr int kMaxDevices = 64;

struct Device {
  int index;
  int processors;
  int shared_per_block;
  bool is_hopper;
};

cudaError_t this_device(Device* device) {
  int major = 0, minor = 0;
  if (const cudaError_t error = cudaGetDevice(&device->index); error != cudaSuccess) return error;
  const auto ask = [&](int* to, cudaDeviceAttr what) {
    return cudaDeviceGetAttribute(to, what, device->index);
  };
  if (const auto error = ask(&major, cudaDevAttrComputeCapabilityMajor)) return error;
  if (const auto error = ask(&minor, cudaDevAttrComputeCapabilityMinor)) return error;
  if (const auto error = ask(&device->processors, cudaDevAttrMultiProcessorCount)) return error;
  device->is_hopper = major == 9 && minor == 0;
  return ask(&device->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

// As many stages as the shared memory of a block's share holds.
template <typename T>
Ring ring_of(const Shape& shape, const Device& device) {
  constexpr int kReserved = 1024 + static_cast<int>(sizeof(Barriers));
  const int share = (device.shared_per_block + 1024) / T::kMinBlocks - kReserved;
  const int x_rows = std::min(T::kRows, (shape.m + 7) / 8 * 8);
  Ring ring{1, x_rows, (x_rows + T::kOutputs) * kStep};
  while (ring.stages < kMaxStages) {
    const Ring more{ring.stages + 1, ring.x_rows, ring.stage_bytes};
    if (Layout<T>::bytes(more) > share) break;
    ring = more;
  }
  return ring;
}

using Kernel = void (*)(Shape, Ring, CUtensorMap, CUtensorMap, int);

template <typename T>
cudaError_t launch_hopper(Kernel kernel, const Shape& shape, const Device& device,
                          cudaStream_t stream) {
  static std::atomic<bool> raised[kMaxDevices];
  if (device.index >= kMaxDevices) return cudaErrorInvalidDevice;
  if (!raised[device.index].load(std::memory_order_acquire)) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             device.shared_per_block - static_cast<int>(sizeof(Barriers)));
    if (error != cudaSuccess) return error;
    raised[device.index].store(true, std::memory_order_release);
  }
  const Ring ring = ring_of<T>(shape, device);
  CUtensorMap x_map, w_map;
  const cudaError_t x_error =
      hopper::map_byte_parts(&x_map, shape.x_code, shape.m, shape.groups, shape.k,
                             static_cast<std::uint32_t>(ring.x_rows));
  if (x_error != cudaSuccess) return x_error;
  const cudaError_t w_error =
      hopper::map_byte_rows(&w_map, shape.w_code, shape.n, shape.k, T::kOutputs);
  if (w_error != cudaSuccess) return w_error;
  const std::int64_t tiles = static_cast<std::int64_t>((shape.m + T::kRows - 1) / T::kRows) *
                             column_tiles(shape, T::kOutputs);
  if (tiles > 0x7FFFFFFF) return cudaErrorInvalidValue;
  const auto blocks = std::min<std::int64_t>(tiles, device.processors * T::kMinBlocks);
  return hopper::launch_dependent(kernel, dim3(static_cast<unsigned>(blocks)), dim3(T::kThreads),
                                  static_cast<std::size_t>(Layout<T>::bytes(ring)), stream, shape,
                                  ring, x_map, w_map, static_cast<int>(tiles));
}

template <typename T>
cudaError_t launch_wide(const Shape& shape, const Device& device, cudaStream_t stream) {
  return launch_hopper<T>(wide_kernel<T>, shape, device, stream);
}

template <typename T>
cudaError_t launch_narrow(const Shape& shape, const Device& device, cudaStream_t stream) {
  return launch_hopper<T>(narrow_kernel<T>, shape, device, stream);
}

cudaError_t launch_portable(const Shape& shape, cudaStream_t stream) {
  const int rows = (shape.m + kPortableTile - 1) / kPortableTile;
  if (rows > 65535) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(column_tiles(shape, kPortableTile)),
                  static_cast<unsigned>(rows));
  portable_kernel<<<grid, kPortableThreads, 0, stream>>>(shape);
  return cudaGetLastError();
}

cudaError_t launch(const Shape& shape, std::int64_t plan, cudaStream_t stream) {
  Device device{};
  if (const cudaError_t error = this_device(&device); error != cudaSuccess) return error;
  if (plan == kAuto) plan = device.is_hopper ? choose(shape, device.processors) : kPortable;
  if (plan == kPortable) return launch_portable(shape, stream);
  if (!device.is_hopper) return cudaErrorInvalidValue;
  switch (plan) {
    case k16x64:
      return launch_narrow<Narrow<16>>(shape, device, stream);
    case k32x64:
      return launch_narrow<Narrow<32>>(shape, device, stream);
    case k64x64:
      return launch_wide<Wide<1, 64>>(shape, device, stream);
    case k64x128:
      return launch_wide<Wide<1, 128>>(shape, device, stream);
    default:
      return launch_wide<Wide<2, 128>>(shape, device, stream);
  }
}

bool aligned(const void* pointer, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

}  // namespace
}  // namespace deepinfer::kernels::linear_fp8

extern "C" int deepinfer_cuda_linear_fp8(const std::uint8_t* x_code, const std::uint8_t* x_scale,
                                         const std::uint8_t* w_code, const std::uint8_t* w_scale,
                                         void* y, std::int64_t m, std::int64_t n, std::int64_t k,
                                         std::int64_t groups, std::int64_t y_is_fp32,
                                         std::int64_t plan, void* stream) {
  using namespace deepinfer::kernels::linear_fp8;
  constexpr std::int64_t kLimit = std::int64_t{1} << 30;
  if (m < 0 || n <= 0 || k <= 0 || groups <= 0 || m > kLimit || n > kLimit || groups > kLimit / k ||
      n % groups != 0 || n / groups % kBlock != 0 || k % kBlock != 0) {
    return cudaErrorInvalidValue;
  }
  if (plan < kAuto || plan >= kPlans) return cudaErrorInvalidValue;
  if (m == 0) return cudaSuccess;
  for (const void* pointer : {static_cast<const void*>(x_code), static_cast<const void*>(w_code),
                              static_cast<const void*>(y)}) {
    if (pointer == nullptr || !aligned(pointer, 16)) return cudaErrorInvalidValue;
  }
  for (const std::uint8_t* pointer : {x_scale, w_scale}) {
    if (pointer == nullptr || !aligned(pointer, 4)) return cudaErrorInvalidValue;
  }
  const Shape shape{x_code,
                    x_scale,
                    w_code,
                    w_scale,
                    y,
                    static_cast<int>(m),
                    static_cast<int>(n),
                    static_cast<int>(k),
                    static_cast<int>(groups),
                    y_is_fp32 != 0 ? 1 : 0};
  return launch(shape, plan, static_cast<cudaStream_t>(stream));
}
