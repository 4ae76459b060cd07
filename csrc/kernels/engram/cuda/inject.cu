// csrc/kernels/engram/cuda/inject.cu — the gate that lets the looked-up value into the streams; see
// engram.h. Bound by memory: 26 bytes a channel of a token. A thread holds one chunk of a stream
// from the load to the store, so that nothing is read twice.
//
// Few tokens: a block a stream, to use every multiprocessor. Many: blocks stay, take tokens in
// turn, and keep the weights of their streams in shared memory. Both make the same sums.
#include <algorithm>
#include <mutex>

#include "kernels/engram/cuda/engram.h"
#include "kernels/quantize_rows/cuda/chunk.cuh"

namespace {

using namespace deepinfer::kernels::rows;

constexpr int kStreams = 4;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / kWarp;
constexpr int kSums = 3;         // of a stream: product, squares of both sides
constexpr int kHere = 2;         // streams of a block that stays; four need too many registers
constexpr int kFewTokens = 128;  // up to here a block a stream
constexpr int kSharedLimit = 160 * 1024;  // bytes of weights that shared memory takes

struct Shape {
  std::int64_t tokens;
  int channels;
  float eps;
};

struct Sums {
  float product = 0.0f;
  float stream = 0.0f;
  float key = 0.0f;
};

// weight: the chunk's eight, as two quads `quad` apart; in shared memory the halves lie apart, so
// that neighbouring lanes read neighbouring quads.
__device__ Sums sums_of(const uint4& stream, const uint4& key, const float4* weight, int quad) {
  const float4 w[2] = {weight[0], weight[quad]};
  const float factors[kChunk] = {w[0].x, w[0].y, w[0].z, w[0].w, w[1].x, w[1].y, w[1].z, w[1].w};
  float s[kChunk], k[kChunk];
  unpack(stream, s);
  unpack(key, k);
  Sums sums;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    sums.product = __fmaf_rn(__fmul_rn(s[i], factors[i]), k[i], sums.product);
    sums.stream = __fmaf_rn(s[i], s[i], sums.stream);
    sums.key = __fmaf_rn(k[i], k[i], sums.key);
  }
  return sums;
}

__device__ float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

__device__ float gate_of(const Sums& sums, const Shape& shape) {
  const float count = static_cast<float>(shape.channels);
  float dot = __fmul_rn(sums.product, rsqrtf(__fadd_rn(__fdiv_rn(sums.stream, count), shape.eps)));
  dot = __fmul_rn(dot, rsqrtf(__fadd_rn(__fdiv_rn(sums.key, count), shape.eps)));
  dot = __fmul_rn(dot, rsqrtf(count));
  const float root = copysignf(__fsqrt_rn(fmaxf(fabsf(dot), 1e-6f)), dot);
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-root)));
}

// `kCount` streams of a token from number `first` on; a dead token keeps what it has. weights: of
// stream `first`, `step` quads a stream. Lanes beyond the row hold zeros and store nothing.
template <int kCount>
__device__ void inject_token(const uint4* streams, const uint4* __restrict__ kv,
                             const float4* weights, int step, int quad, bool dead, uint4* out,
                             std::int64_t token, int first, const Shape& shape) {
  __shared__ float partial[kMaxWarps][kStreams * kSums];
  __shared__ float gates[kStreams];
  const int chunks = shape.channels / kChunk, c = static_cast<int>(threadIdx.x);
  const int lane = c % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  const bool here = c < chunks;
  const std::int64_t row = (token * kStreams + first) * chunks + c;
  const std::int64_t other = token * (kStreams + 1) * chunks + c;
  const uint4 nothing = make_uint4(0, 0, 0, 0);
  uint4 stream[kCount], key[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    stream[k] = here ? streams[row + k * chunks] : nothing;
    key[k] = here ? __ldcs(kv + other + (first + k) * chunks) : nothing;
  }
  const uint4 value = here ? __ldg(kv + other + kStreams * chunks) : nothing;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int place = here ? c : 0;  // the product with a zero stream is zero
    const Sums own =
        sums_of(stream[k], key[k], weights + k * step + place * (quad == 1 ? 2 : 1), quad);
    const float product = sum_of_lanes(own.product), squares = sum_of_lanes(own.stream),
                key_squares = sum_of_lanes(own.key);
    if (lane < kSums)
      partial[c / kWarp][k * kSums + lane] = lane == 0   ? product
                                             : lane == 1 ? squares
                                                         : key_squares;
  }
  __syncthreads();
  if (c < kCount) {
    Sums all;
    for (int w = 0; w < warps; ++w) {
      all.product = __fadd_rn(all.product, partial[w][c * kSums]);
      all.stream = __fadd_rn(all.stream, partial[w][c * kSums + 1]);
      all.key = __fadd_rn(all.key, partial[w][c * kSums + 2]);
    }
    gates[c] = gate_of(all, shape);
  }
  __syncthreads();
  if (!here || (dead && streams == out)) return;
  float added[kChunk];
  unpack(value, added);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    float mixed[kChunk];
    unpack(stream[k], mixed);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) mixed[i] = __fmaf_rn(gates[k], added[i], mixed[i]);
    out[row + k * chunks] = dead ? stream[k] : pack(mixed);
  }
}

__global__ void inject_few(const uint4* streams, const uint4* __restrict__ kv,
                           const float4* __restrict__ weight, const std::uint8_t* __restrict__ dead,
                           uint4* out, Shape shape) {
  const std::int64_t token = blockIdx.x / kStreams;
  const int first = static_cast<int>(blockIdx.x % kStreams), quads = shape.channels / 4;
  inject_token<1>(streams, kv, weight + first * quads, quads, 1, dead[token] != 0, out, token,
                  first, shape);
}

// A block keeps to `kHere` streams. In shared memory the first quads of all chunks come before the
// second ones.
template <int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    inject_many(const uint4* streams, const uint4* __restrict__ kv,
                const float4* __restrict__ weight, const std::uint8_t* __restrict__ dead,
                uint4* out, Shape shape) {
  extern __shared__ float4 kept[];
  constexpr int kParts = kStreams / kHere;
  const int quads = shape.channels / 4, chunks = quads / 2;
  const int first = static_cast<int>(blockIdx.x) % kParts * kHere;
  for (int i = static_cast<int>(threadIdx.x); i < kHere * quads;
       i += static_cast<int>(blockDim.x)) {
    const int k = i / quads, q = i % quads;
    kept[k * quads + q % 2 * chunks + q / 2] = weight[first * quads + i];
  }
  __syncthreads();
  for (std::int64_t token = blockIdx.x / kParts; token < shape.tokens; token += gridDim.x / kParts)
    inject_token<kHere>(streams, kv, kept, quads, chunks, dead[token] != 0, out, token, first,
                        shape);
}

// Multiprocessors of the current device, and the shared memory that the kernels may take, set once
// for each device.
cudaError_t prepare(int* processors) {
  constexpr int kDevices = 64;
  static std::mutex mutex;
  static int known[kDevices] = {};
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device >= kDevices) return cudaErrorInvalidValue;
  const std::lock_guard lock(mutex);
  if (known[device] == 0) {
    for (const auto kernel : {inject_many<640, 2>, inject_many<1024, 1>}) {
      const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit);
      if (error != cudaSuccess) return error;
    }
    const cudaError_t error =
        cudaDeviceGetAttribute(&known[device], cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
  }
  *processors = known[device];
  return cudaSuccess;
}

}  // namespace

extern "C" {

int deepinfer_cuda_engram_inject(const void* streams, const void* kv, const void* weight,
                                 const void* dead, void* out, std::int64_t tokens,
                                 std::int64_t channels, float eps, void* stream) {
  if (tokens < 0 || tokens > 0x7FFFFFFF / kStreams || channels <= 0 || channels % kChunk != 0 ||
      channels > kMaxThreads * kChunk || !(eps >= 0.0f))
    return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(streams, kv, weight, dead, out)) return cudaErrorInvalidValue;
  const Shape shape{tokens, static_cast<int>(channels), eps};
  const int threads = (static_cast<int>(channels) / kChunk + kWarp - 1) / kWarp * kWarp;
  const auto on = static_cast<cudaStream_t>(stream);
  const auto run = [&](auto kernel, std::int64_t blocks, std::size_t shared) {
    kernel<<<static_cast<unsigned>(blocks), threads, shared, on>>>(
        static_cast<const uint4*>(streams), static_cast<const uint4*>(kv),
        static_cast<const float4*>(weight), static_cast<const std::uint8_t*>(dead),
        static_cast<uint4*>(out), shape);
    return static_cast<int>(cudaGetLastError());
  };
  if (tokens <= kFewTokens) return run(inject_few, tokens * kStreams, 0);
  int processors = 0;
  if (const cudaError_t error = prepare(&processors); error != cudaSuccess) return error;
  constexpr int kParts = kStreams / kHere;
  const auto many = [&](auto kernel, int resident) {
    const std::int64_t blocks =
        std::min<std::int64_t>(tokens, processors * resident / kParts) * kParts;
    return run(kernel, blocks, kHere * channels * sizeof(float));
  };
  return threads <= 640 ? many(inject_many<640, 2>, 2) : many(inject_many<1024, 1>, 1);
}

}  // extern "C"
