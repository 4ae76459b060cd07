// csrc/kernels/router/cuda/logits.cuh — products of tokens and gate rows on the matrix unit of a
// warp. Experts are the rows of the instruction and tokens its columns, so that a few tokens cost
// little. Tiles go through shared memory in steps of 64 along the width.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/hopper/cp_async.cuh"
#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/hopper/mma_sync.cuh"

namespace deepinfer::kernels::router {

constexpr int kStep = 64;       // of the width: rows of 128 bytes in shared memory
constexpr int kPartSteps = 10;  // steps that one sum goes over before it is added
constexpr int kPart = kStep * kPartSteps;

struct Product {
  const __nv_bfloat16* x;
  const __nv_bfloat16* gate;
  float* work;
  int tokens;
  int width;
  int experts;
};

// kSplit: blockIdx.z is the part; with more stages than a part has steps, all are under way at
// once. Else a block goes through all parts.
template <int kExperts_, int kTokens_, int kExpertWarps_, int kTokenWarps_, int kStages_,
          bool kSplit_>
struct Tile {
  static constexpr int kExperts = kExperts_, kTokens = kTokens_;
  static constexpr int kExpertWarps = kExpertWarps_, kTokenWarps = kTokenWarps_;
  static constexpr bool kSplit = kSplit_;
  static constexpr int kThreads = 32 * kExpertWarps * kTokenWarps;
  static constexpr int kRows = kExperts + kTokens;
  static constexpr int kStages = kStages_;
  static constexpr int kHigh = kExperts / kExpertWarps / 16;  // instructions of a warp
  static constexpr int kWide = kTokens / kTokenWarps / 8;
  static constexpr int kBytes = kStages * kRows * kStep * 2;
  static_assert(kHigh >= 1 && (kWide == 1 || kWide % 2 == 0));
};

template <typename T>
class Multiplier {
 public:
  __device__ Multiplier(unsigned char* memory, const Product& product)
      : memory_(memory),
        product_(product),
        expert_(static_cast<int>(blockIdx.x) * T::kExperts),
        token_(static_cast<int>(blockIdx.y) * T::kTokens),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_expert_(static_cast<int>(threadIdx.x / 32) % T::kExpertWarps * (16 * T::kHigh)),
        warp_token_(static_cast<int>(threadIdx.x / 32) / T::kExpertWarps * (8 * T::kWide)) {}

  __device__ void run() {
    const int all = (product_.width + kStep - 1) / kStep;
    const int begin = T::kSplit ? static_cast<int>(blockIdx.z) * kPartSteps : 0;
    const int end = T::kSplit ? min(all, begin + kPartSteps) : all;
#pragma unroll
    for (int s = 0; s < T::kStages - 1; ++s) fetch(begin + s, end, s);
    int stage = 0, left = kPartSteps;
    for (int s = begin; s < end; ++s) {
      hopper::cp_async_wait<T::kStages - 2>();
      __syncthreads();  // the step has arrived for all, and all are done with the one before
      fetch(s + T::kStages - 1, end, stage == 0 ? T::kStages - 1 : stage - 1);
      multiply(stage);
      stage = stage + 1 == T::kStages ? 0 : stage + 1;
      if (!T::kSplit && --left == 0) {
        add();
        left = kPartSteps;
      }
    }
    if (!T::kSplit && left != kPartSteps) add();
    store();
  }

 private:
  // Units of 16 bytes, dealt so that eight rows' units of one column lie in eight places.
  __device__ unsigned char* place(int stage, int row, int unit) const {
    return memory_ + (stage * T::kRows + row) * (2 * kStep) + ((unit ^ (row & 7)) << 4);
  }

  __device__ void fetch(int step, int end, int stage) const {
    if (step < end) {
#pragma unroll
      for (int i = threadIdx.x; i < T::kRows * 8; i += T::kThreads) {
        const int row = i / 8, unit = i % 8, column = step * kStep + unit * 8;
        const bool is_gate = row < T::kExperts;
        const int line = is_gate ? expert_ + row : token_ + row - T::kExperts;
        const bool inside =
            column < product_.width && line < (is_gate ? product_.experts : product_.tokens);
        const __nv_bfloat16* from = is_gate ? product_.gate : product_.x;
        if (inside) from += static_cast<std::int64_t>(line) * product_.width + column;
        hopper::cp_async_16(place(stage, row, unit), from, inside);
      }
    }
    hopper::cp_async_commit();
  }

  __device__ void multiply(int stage) {
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      std::uint32_t a[T::kHigh][4], b[T::kWide][2];
#pragma unroll
      for (int h = 0; h < T::kHigh; ++h)
        hopper::ldmatrix_x4(a[h],
                            place(stage, warp_expert_ + 16 * h + lane_ % 16, 2 * k + lane_ / 16));
      const int row = T::kExperts + warp_token_ + lane_ % 8;
      if constexpr (T::kWide == 1) {
        hopper::ldmatrix_x2(b[0][0], b[0][1], place(stage, row, 2 * k + lane_ / 8 % 2));
      } else {
#pragma unroll
        for (int w = 0; w < T::kWide; w += 2) {
          std::uint32_t two[4];
          hopper::ldmatrix_x4(two, place(stage, row + 8 * (w + lane_ / 16), 2 * k + lane_ / 8 % 2));
          b[w][0] = two[0], b[w][1] = two[1], b[w + 1][0] = two[2], b[w + 1][1] = two[3];
        }
      }
#pragma unroll
      for (int h = 0; h < T::kHigh; ++h)
#pragma unroll
        for (int w = 0; w < T::kWide; ++w)
          hopper::mma_bf16_16x8x16(sum_[h][w], a[h], b[w][0], b[w][1]);
    }
  }

  __device__ void add() {
#pragma unroll
    for (int h = 0; h < T::kHigh; ++h)
#pragma unroll
      for (int w = 0; w < T::kWide; ++w)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total_[h][w][i] += sum_[h][w][i];
          sum_[h][w][i] = 0.0f;
        }
  }

  __device__ void store() const {
    float* part = product_.work;
    if (T::kSplit)
      part += static_cast<std::int64_t>(blockIdx.z) * product_.tokens * product_.experts;
#pragma unroll
    for (int h = 0; h < T::kHigh; ++h)
#pragma unroll
      for (int w = 0; w < T::kWide; ++w)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int expert = expert_ + warp_expert_ + 16 * h + lane_ / 4 + i / 2 * 8;
          const int token = token_ + warp_token_ + 8 * w + lane_ % 4 * 2 + i % 2;
          if (expert < product_.experts && token < product_.tokens)
            part[static_cast<std::int64_t>(token) * product_.experts + expert] =
                T::kSplit ? sum_[h][w][i] : total_[h][w][i];
        }
  }

  unsigned char* memory_;
  const Product& product_;
  int expert_, token_, lane_, warp_expert_, warp_token_;
  float sum_[T::kHigh][T::kWide][4] = {};
  float total_[T::kHigh][T::kWide][4] = {};
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBytes <= 112 * 1024 ? 2 : 1)
    logits(const Product product) {
  extern __shared__ __align__(128) unsigned char memory[];
  hopper::allow_dependent_launch();
  Multiplier<T>(memory, product).run();
}

}  // namespace deepinfer::kernels::router
