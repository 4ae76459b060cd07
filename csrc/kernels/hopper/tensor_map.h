// csrc/kernels/hopper/tensor_map.h — tensor maps for the copy engine, made on the host.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace deepinfer::kernels::hopper {

using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time so that nothing links against the driver library.
inline EncodeTensorMap encode_tensor_map() {
  static const EncodeTensorMap function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    const bool usable = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<EncodeTensorMap>(found) : nullptr;
  }();
  return function;
}

// A matrix of bytes [rows, cols], C-contiguous, read in boxes of box_rows x 128 columns with the
// 128-byte swizzle; outside of the matrix are zeros. cols % 16 == 0, 16-byte aligned base.
inline cudaError_t map_byte_rows(CUtensorMap* map, const void* base, std::int64_t rows,
                                 std::int64_t cols, std::uint32_t box_rows) {
  const EncodeTensorMap encode = encode_tensor_map();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t extent[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(cols)};
  const cuuint32_t box[2] = {128, box_rows};
  const cuuint32_t step[2] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(base), extent, stride, box,
             step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace deepinfer::kernels::hopper
