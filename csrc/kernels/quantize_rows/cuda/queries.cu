// csrc/kernels/quantize_rows/cuda/queries.cu — rotation of query heads, and of index queries with
// their quantization to FP4-32; see quantize_rows.h. A block takes a token, so that its 32 cosines
// and sines are made once; a thread takes the same chunk of every head that it meets, so that it
// keeps its own four in registers.
#include "kernels/quantize_rows/cuda/chunk.cuh"
#include "kernels/quantize_rows/cuda/formats.cuh"
#include "kernels/quantize_rows/cuda/quantize_rows.h"
#include "kernels/quantize_rows/cuda/rotation.cuh"

namespace {

using namespace deepinfer::kernels::rows;

constexpr int kUnit = 128;                // threads: chunks of a head divide it
constexpr std::int64_t kFewTokens = 256;  // up to here more threads a token, to be done sooner
constexpr int kMaxPairs = 32;
constexpr int kGroup = 32 / kChunk;  // lanes that share a scale

struct Heads {
  int heads;
  int chunks;   // of a head
  int first;    // chunk that the kernel begins with: 0, or `rotated` where the others stay
  int rotated;  // chunk from which on channels turn
  int pairs;
};

// The turns of this block's token, in shared memory; the caller synchronizes.
__device__ void make_turns(Turn* turns, const std::int64_t* positions, const float* freqs,
                           int pairs) {
  const int i = threadIdx.x;
  if (i < pairs) turns[i] = turn(__fmul_rn(static_cast<float>(positions[blockIdx.x]), freqs[i]));
}

// `use` is called by whole warps with the index of each chunk of this thread, its channels, and
// whether there is such a head. It may write to x: a thread reads a chunk before it writes the
// same.
template <int kThreads, int kInFlight, typename Use>
__device__ void each_chunk(const uint4* x, const std::int64_t* positions, const float* freqs,
                           const Heads& shape, Use use) {
  __shared__ Turn shared[kMaxPairs];
  const int wide = shape.chunks - shape.first;  // chunks of a head that are visited; divides 128
  const int c = shape.first + static_cast<int>(threadIdx.x) % wide, step = kThreads / wide;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * shape.heads * shape.chunks;
  Turn turns[kChunk / 2];
  for (int base = 0; base < shape.heads; base += kInFlight * step) {
    const int head = base + static_cast<int>(threadIdx.x) / wide;
    uint4 chunk[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int h = head + k * step;
      chunk[k] = h < shape.heads ? x[token + h * shape.chunks + c] : make_uint4(0, 0, 0, 0);
    }
    if (base == 0) {
      make_turns(shared, positions, freqs, shape.pairs);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i)
        if (c >= shape.rotated) turns[i] = shared[(c - shape.rotated) * (kChunk / 2) + i];
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (c >= shape.rotated) {
        float value[kChunk];
        unpack(chunk[k], value);
        rotate(value, turns);
        chunk[k] = pack(value);
      }
      const int h = head + k * step;
      use(token + h * shape.chunks + c, chunk[k], h < shape.heads);
    }
  }
}

template <int kThreads, int kInFlight>
__global__ void __launch_bounds__(kThreads) queries(const uint4* x, const std::int64_t* positions,
                                                    const float* freqs, uint4* out, Heads shape) {
  each_chunk<kThreads, kInFlight>(x, positions, freqs, shape,
                                  [&](std::int64_t place, const uint4& chunk, bool here) {
                                    if (here) out[place] = chunk;
                                  });
}

template <int kThreads, int kInFlight>
__global__ void __launch_bounds__(kThreads)
    index_queries(const uint4* __restrict__ x, const std::int64_t* __restrict__ positions,
                  const float* __restrict__ freqs, std::uint32_t* __restrict__ codes,
                  std::uint8_t* __restrict__ scales, Heads shape) {
  each_chunk<kThreads, kInFlight>(
      x, positions, freqs, shape, [&](std::int64_t place, const uint4& chunk, bool here) {
        const std::uint32_t scale = fp4_scale(largest_of_lanes<kGroup>(largest(chunk)));
        if (!here) return;
        codes[place] = fp4_codes(chunk, scale);
        if (threadIdx.x % kGroup == 0) scales[place / kGroup] = static_cast<std::uint8_t>(scale);
      });
}

bool allowed(std::int64_t tokens, std::int64_t heads, std::int64_t channels, std::int64_t pairs) {
  return tokens >= 0 && tokens <= 0x7FFFFFFF && heads > 0 && heads <= 1024 && channels > 0 &&
         channels % kChunk == 0 && kUnit % (channels / kChunk) == 0 && pairs > 0 &&
         pairs <= kMaxPairs && 2 * pairs <= channels && pairs % (kChunk / 2) == 0 &&
         kUnit % (pairs / (kChunk / 2)) == 0;
}

}  // namespace

extern "C" {

int deepinfer_cuda_rows_queries(const void* x, const void* positions, const void* freqs, void* out,
                                std::int64_t tokens, std::int64_t heads, std::int64_t channels,
                                std::int64_t pairs, void* stream) {
  if (!allowed(tokens, heads, channels, pairs)) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(x, positions, freqs, out)) return cudaErrorInvalidValue;
  const int chunks = static_cast<int>(channels) / kChunk;
  const int rotated = chunks - static_cast<int>(pairs) * 2 / kChunk;
  const Heads shape{static_cast<int>(heads), chunks, x == out ? rotated : 0, rotated,
                    static_cast<int>(pairs)};
  const auto run = [&](auto kernel, int threads) {
    kernel<<<static_cast<unsigned>(tokens), threads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint4*>(x), static_cast<const std::int64_t*>(positions),
        static_cast<const float*>(freqs), static_cast<uint4*>(out), shape);
    return static_cast<int>(cudaGetLastError());
  };
  return tokens <= kFewTokens ? run(queries<256, 2>, 256) : run(queries<128, 4>, 128);
}

int deepinfer_cuda_rows_index_queries(const void* x, const void* positions, const void* freqs,
                                      void* codes, void* scales, std::int64_t tokens,
                                      std::int64_t heads, std::int64_t channels, std::int64_t pairs,
                                      void* stream) {
  if (!allowed(tokens, heads, channels, pairs) || channels % 32 != 0) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(x, positions, freqs, codes, scales)) return cudaErrorInvalidValue;
  const int chunks = static_cast<int>(channels) / kChunk;
  const Heads shape{static_cast<int>(heads), chunks, 0,
                    chunks - static_cast<int>(pairs) * 2 / kChunk, static_cast<int>(pairs)};
  const auto run = [&](auto kernel, int threads) {
    kernel<<<static_cast<unsigned>(tokens), threads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint4*>(x), static_cast<const std::int64_t*>(positions),
        static_cast<const float*>(freqs), static_cast<std::uint32_t*>(codes),
        static_cast<std::uint8_t*>(scales), shape);
    return static_cast<int>(cudaGetLastError());
  };
  return tokens <= kFewTokens ? run(index_queries<256, 2>, 256) : run(index_queries<128, 4>, 128);
}

}  // extern "C"
