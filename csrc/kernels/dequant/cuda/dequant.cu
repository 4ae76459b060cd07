// csrc/kernels/dequant/cuda/dequant.cu — see dequant.h; any device from sm_90 on.
// Bound by memory. A unit is 16 bytes of output; neighbouring threads take neighbouring units, so
// that loads and stores of a warp are contiguous, and each thread has four loads in flight.
// Products are exact in fp32, subnormals included: never build this with --use_fast_math.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/dequant/cuda/dequant.h"

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kUnitsPerThread = 4;
constexpr unsigned kBlockCols = 32;
constexpr std::int64_t kMaxUnits = std::int64_t{1} << 31;  // per launch: indices fit in 32 bits
constexpr int kScaleIsNan = 1;
constexpr int kWeightIsNan = 2;

template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using Type = std::uint16_t;
};
template <>
struct Word<4> {
  using Type = std::uint32_t;
};
template <>
struct Word<8> {
  using Type = uint2;
};

template <typename Out>
constexpr int kUnit = 16 / static_cast<int>(sizeof(Out));  // elements

__device__ float decode_scale(std::uint32_t code) {
  if (code == 0xFF) return __int_as_float(0x7FC00000);
  return __int_as_float(code == 0 ? 0x00400000 : static_cast<int>(code << 23));
}

struct Fp8 {
  static constexpr int kCodesPerByte = 1;

  __device__ static float2 pair(const std::uint8_t* codes, int index) {
    const auto two =
        static_cast<__nv_fp8x2_storage_t>(codes[2 * index] | codes[2 * index + 1] << 8);
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
  }
  __device__ static bool is_nan(std::uint32_t codes) {
    return __vcmpeq4(codes | 0x80808080u, 0xFFFFFFFFu) != 0;
  }
};

struct Fp4 {
  static constexpr int kCodesPerByte = 2;

  // A code's three low bits as the lowest exponent bits and highest fraction bit of a half are its
  // value times 2^-14, zero and 0.5 included.
  __device__ static float2 pair(const std::uint8_t* codes, int index) {
    const std::uint32_t two = codes[index];
    const std::uint32_t bits =
        (two & 0x7u) << 9 | (two & 0x8u) << 12 | (two & 0x70u) << 21 | (two & 0x80u) << 24;
    __half2_raw raw;
    raw.x = static_cast<unsigned short>(bits);
    raw.y = static_cast<unsigned short>(bits >> 16);
    return __half22float2(__hmul2(__half2(raw), __float2half2_rn(16384.0f)));
  }
  __device__ static bool is_nan(std::uint32_t) { return false; }
};

__device__ void put(std::uint32_t* words, int pair, float2 value, const __nv_bfloat16*) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(value.x, value.y);
  words[pair] = static_cast<std::uint32_t>(__bfloat16_as_ushort(two.x)) |
                static_cast<std::uint32_t>(__bfloat16_as_ushort(two.y)) << 16;
}

__device__ void put(std::uint32_t* words, int pair, float2 value, const float*) {
  words[2 * pair] = __float_as_uint(value.x);
  words[2 * pair + 1] = __float_as_uint(value.y);
}

struct Shape {
  unsigned units;  // of this launch
  unsigned units_per_row;
  unsigned block_rows;
};

// Elements of one row block share the scale of their 32 columns.
template <typename Out>
__device__ std::int64_t scale_index(unsigned unit, const Shape& shape) {
  constexpr unsigned kUnitsPerScale = kBlockCols / kUnit<Out>;
  if (shape.block_rows == 1) return unit / kUnitsPerScale;
  const unsigned row = unit / shape.units_per_row;
  const unsigned column = (unit - row * shape.units_per_row) / kUnitsPerScale;
  return static_cast<std::int64_t>(row / shape.block_rows) *
             (shape.units_per_row / kUnitsPerScale) +
         column;
}

template <typename Format, typename Out>
__global__ void __launch_bounds__(kThreads)
    dequant(const std::uint8_t* __restrict__ weight, const std::uint8_t* __restrict__ scale,
            Out* __restrict__ out, Shape shape, int* status) {
  constexpr int kBytes = kUnit<Out> / Format::kCodesPerByte;
  using Codes = typename Word<kBytes>::Type;
  const unsigned first = blockIdx.x * (kThreads * kUnitsPerThread) + threadIdx.x;
  Codes codes[kUnitsPerThread];
  std::uint32_t scales[kUnitsPerThread];
#pragma unroll
  for (unsigned k = 0; k < kUnitsPerThread; ++k) {
    const unsigned unit = first + k * kThreads;
    if (unit >= shape.units) break;
    codes[k] = reinterpret_cast<const Codes*>(weight)[unit];
    scales[k] = scale[scale_index<Out>(unit, shape)];
  }
  int found = 0;
#pragma unroll
  for (unsigned k = 0; k < kUnitsPerThread; ++k) {
    const unsigned unit = first + k * kThreads;
    if (unit >= shape.units) break;
    std::uint8_t bytes[kBytes];
    memcpy(bytes, &codes[k], kBytes);
    const float factor = decode_scale(scales[k]);
    found |= scales[k] == 0xFF ? kScaleIsNan : 0;
    if constexpr (kBytes >= 4) {
      std::uint32_t words[kBytes / 4];
      memcpy(words, &codes[k], kBytes);
      for (const std::uint32_t word : words) found |= Format::is_nan(word) ? kWeightIsNan : 0;
    }
    std::uint32_t result[4];
#pragma unroll
    for (int pair = 0; pair < kUnit<Out> / 2; ++pair) {
      const float2 value = Format::pair(bytes, pair);
      put(result, pair, make_float2(value.x * factor, value.y * factor), out);
    }
    reinterpret_cast<uint4*>(out)[unit] = make_uint4(result[0], result[1], result[2], result[3]);
  }
  if (found != 0 && status != nullptr) atomicOr(status, found);
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// As many rows a launch as 32-bit indices allow, in whole row blocks.
template <typename Format, typename Out>
int launch(const std::uint8_t* weight, const std::uint8_t* scale, Out* out, std::int64_t rows,
           std::int64_t cols, std::int64_t block_rows, int* status, cudaStream_t stream) {
  if (rows < 0 || cols < 0 || block_rows < 1 || cols % kBlockCols != 0)
    return cudaErrorInvalidValue;
  if (rows == 0 || cols == 0) return cudaSuccess;
  if (weight == nullptr || scale == nullptr || out == nullptr) return cudaErrorInvalidValue;
  if (!aligned(weight) || !aligned(out)) return cudaErrorInvalidValue;
  block_rows = std::min(block_rows, rows);
  const std::int64_t units_per_row = cols / kUnit<Out>;
  const std::int64_t row_blocks = kMaxUnits / units_per_row / block_rows;
  if (row_blocks == 0) return cudaErrorInvalidValue;  // one row block beyond 2^31 units
  const std::int64_t step = row_blocks * block_rows;
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t units = std::min(step, rows - row) * units_per_row;
    constexpr std::int64_t kPerBlock = kThreads * kUnitsPerThread;
    const auto blocks = static_cast<unsigned>((units + kPerBlock - 1) / kPerBlock);
    const Shape shape{static_cast<unsigned>(units), static_cast<unsigned>(units_per_row),
                      static_cast<unsigned>(block_rows)};
    dequant<Format, Out><<<blocks, kThreads, 0, stream>>>(
        weight + row * cols / Format::kCodesPerByte, scale + row / block_rows * (cols / kBlockCols),
        out + row * cols, shape, status);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <typename Format>
int launch(const std::uint8_t* weight, const std::uint8_t* scale, void* out, int out_is_fp32,
           std::int64_t rows, std::int64_t cols, std::int64_t block_rows, int* status,
           void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (out_is_fp32 != 0) {
    return launch<Format>(weight, scale, static_cast<float*>(out), rows, cols, block_rows, status,
                          on);
  }
  return launch<Format>(weight, scale, static_cast<__nv_bfloat16*>(out), rows, cols, block_rows,
                        status, on);
}

}  // namespace

extern "C" {

int deepinfer_cuda_dequant_fp8_block(const std::uint8_t* weight, const std::uint8_t* scale,
                                     void* out, int out_is_fp32, std::int64_t rows,
                                     std::int64_t cols, std::int64_t block_rows, int* status,
                                     void* stream) {
  return launch<Fp8>(weight, scale, out, out_is_fp32, rows, cols, block_rows, status, stream);
}

int deepinfer_cuda_dequant_fp4_row(const std::uint8_t* weight, const std::uint8_t* scale, void* out,
                                   int out_is_fp32, std::int64_t rows, std::int64_t cols,
                                   int* status, void* stream) {
  return launch<Fp4>(weight, scale, out, out_is_fp32, rows, cols, 1, status, stream);
}

const char* deepinfer_cuda_error_name(int code) {
  return cudaGetErrorName(static_cast<cudaError_t>(code));
}

}  // extern "C"
