// csrc/kernels/moe_gemm/cuda/consumer.cuh — the main loop of one warpgroup: 64 features times a
// tile of tokens over all of K. While the matrix unit works on one group of 32 columns, the warps
// decode the weights of the next and add the group before, times its scales.
#pragma once
#include "kernels/moe_gemm/cuda/fragment.cuh"
#include "kernels/moe_gemm/cuda/producer.cuh"

namespace deepinfer::kernels::moe_gemm {

// A thread's place in its warpgroup: it holds rows 16 warp + g and that plus 8, tokens 8 j + 2 q +
// c.
struct Lane {
  int thread;
  int warp;
  int g;
  int q;

  __device__ Lane()
      : thread(static_cast<int>(threadIdx.x) % 128),
        warp(thread / 32),
        g(thread % 32 / 4),
        q(thread % 4) {}
};

// Where the scales of a group are: of the tokens in shared memory, of the two rows in a byte each
// (used where they are not folded into the weights).
struct GroupScales {
  const float* tokens;
  std::uint32_t row0;
  std::uint32_t row1;
};

// sum += part * scales, one fused multiply-add per element.
template <int kTokens, bool kFolded>
__device__ __forceinline__ void promote(float (&sum)[kTokens / 2], const float (&part)[kTokens / 2],
                                        const GroupScales& scales) {
  const float row0 = kFolded ? 1.0f : power_of_two(scales.row0);
  const float row1 = kFolded ? 1.0f : power_of_two(scales.row1);
#pragma unroll
  for (int j = 0; j < kTokens / 8; j += 2) {
    float token[4];
    if constexpr (kTokens == 8) {
      const float2 two = *reinterpret_cast<const float2*>(scales.tokens);
      token[0] = two.x, token[1] = two.y, token[2] = 0.0f, token[3] = 0.0f;
    } else {
      const float4 four = *reinterpret_cast<const float4*>(scales.tokens + 2 * j);
      token[0] = four.x, token[1] = four.y, token[2] = four.z, token[3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < (2 * j + 4 <= kTokens / 4 ? 4 : 2); ++i) {
      const int at = 4 * (j + i / 2) + i % 2;
      sum[at] = fmaf(part[at], kFolded ? token[i] : token[i] * row0, sum[at]);
      sum[at + 2] = fmaf(part[at + 2], kFolded ? token[i] : token[i] * row1, sum[at + 2]);
    }
  }
}

template <typename Config>
struct Feed {
  Stages<Config>* stages;
  Ring<Config::kStages> ring;
  int chunks;
  int warpgroup;
};

// The packed weights of one thread in a stage: half of them in registers at a time.
struct Codes {
  const uint4* source;
  uint4 words;
  std::uint32_t row_scales[2];  // a byte per group

  template <typename Config>
  __device__ __forceinline__ void load(const Feed<Config>& feed, const Lane& lane) {
    const int stage = feed.ring.stage;
    hopper::mbarrier_wait(&feed.stages->full[stage], feed.ring.phase);
    const std::uint8_t* block = feed.stages->weights[stage] + feed.warpgroup * kBlockBytes;
    const auto* scales = reinterpret_cast<const std::uint32_t*>(block + kCodeBytes);
    source = reinterpret_cast<const uint4*>(block) + lane.thread;
    words = source[0];
    row_scales[0] = scales[16 * lane.warp + lane.g];
    row_scales[1] = scales[16 * lane.warp + 8 + lane.g];
  }

  __device__ __forceinline__ void load_second_half() { words = source[128]; }

  __device__ __forceinline__ std::uint32_t scale(int row, int step) const {
    return permute_bytes(row_scales[row], 0, 0x4440u + step);
  }

  template <bool kFolded>
  __device__ __forceinline__ void fragment(std::uint32_t (&a)[4], int step) const {
    const std::uint32_t word0 = step % 2 == 0 ? words.x : words.z;
    const std::uint32_t word1 = step % 2 == 0 ? words.y : words.w;
    decode(word0, magnitudes(kFolded ? scale(0, step) : kUnitCode), a[0], a[2]);
    decode(word1, magnitudes(kFolded ? scale(1, step) : kUnitCode), a[1], a[3]);
  }
};

// sum = weights * tokens over all chunks of a tile.
template <int kTokens, bool kFolded, typename Config>
__device__ __forceinline__ void multiply(float (&sum)[kTokens / 2], Feed<Config>& feed,
                                         const Lane& lane) {
  constexpr int kPitch = kScalePitch<Config>;
  float part[2][kTokens / 2] = {};
  std::uint32_t a[2][4] = {};
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) sum[i] = 0.0f;
  Codes codes;
  codes.load(feed, lane);
  codes.template fragment<kFolded>(a[0], 0);
#pragma unroll 1
  for (int left = feed.chunks; left > 0; --left) {
    const int stage = feed.ring.stage;
    const std::uint32_t tokens = hopper::shared_address(feed.stages->tokens[stage]);
    const float* scales = feed.stages->scales[stage] + lane.q * kPitch;
    const auto add = [&](int step) {
      const GroupScales group{scales + step * 4 * kPitch, codes.scale(0, step),
                              codes.scale(1, step)};
      promote<kTokens, kFolded>(sum, part[step % 2], group);
    };
    start<kTokens>(part[0], a[0], tokens, 0);
#pragma unroll
    for (int step = 1; step < kSteps; ++step) {
      codes.template fragment<kFolded>(a[step % 2], step);
      if (step == 1) codes.load_second_half();
      start<kTokens>(part[step % 2], a[step % 2], tokens, step);
      finish<1>(part[1 - step % 2], a[1 - step % 2]);
      add(step - 1);
    }
    feed.ring.advance();
    const Codes last = codes;
    if (left > 1) {
      codes.load(feed, lane);
      codes.template fragment<kFolded>(a[0], 0);
    }
    finish<0>(part[(kSteps - 1) % 2], a[(kSteps - 1) % 2]);
    const GroupScales group{scales + (kSteps - 1) * 4 * kPitch, last.scale(0, kSteps - 1),
                            last.scale(1, kSteps - 1)};
    promote<kTokens, kFolded>(sum, part[(kSteps - 1) % 2], group);
    if (lane.thread % 32 == 0) hopper::mbarrier_arrive(&feed.stages->empty[stage]);
  }
}

}  // namespace deepinfer::kernels::moe_gemm
