// csrc/kernels/hopper/tensor_map_3d.h — a tensor map, as in tensor_map.h, of rows that are cut in
// parts.
#pragma once
#include "kernels/hopper/tensor_map.h"

namespace deepinfer::kernels::hopper {

// Bytes [rows, parts, cols], C-contiguous, read in boxes of box_rows rows of one part and 128
// columns with the 128-byte swizzle; outside of a part are zeros. cols % 16 == 0, 16-byte aligned
// base.
inline cudaError_t map_byte_parts(CUtensorMap* map, const void* base, std::int64_t rows,
                                  std::int64_t parts, std::int64_t cols, std::uint32_t box_rows) {
  const EncodeTensorMap encode = encode_tensor_map();
  if (encode == nullptr) return cudaErrorNotSupported;
  const auto wide = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t extent[3] = {wide(cols), wide(parts), wide(rows)};
  const cuuint64_t stride[2] = {wide(cols), wide(parts * cols)};
  const cuuint32_t box[3] = {128, 1, box_rows};
  const cuuint32_t step[3] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(base), extent, stride, box,
             step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace deepinfer::kernels::hopper
