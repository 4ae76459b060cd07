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

template <typename Config>
struct Feed {
  Stages<Config>* stages;
  Ring<Config::kStages> ring;
  int count;  // of stages along k
  int warpgroup;
};

// The packed weights of one thread: those of two steps in registers at a time.
struct Codes {
  const std::uint8_t* block;  // of this warpgroup in the stage
  uint4 words;
  std::uint32_t row_scales[2];  // a byte per group of the chunk

  // What `step` and the step after it need; step is even.
  __device__ __forceinline__ void load(const Lane& lane, int step) {
    const std::uint8_t* chunk = block + step / kGroups * (kConsumers * kBlockBytes);
    words = reinterpret_cast<const uint4*>(chunk)[step % kGroups / 2 * 128 + lane.thread];
    if (step % kGroups != 0) return;
    const auto* scales = reinterpret_cast<const std::uint32_t*>(chunk + kCodeBytes);
    row_scales[0] = scales[16 * lane.warp + lane.g];
    row_scales[1] = scales[16 * lane.warp + 8 + lane.g];
  }

  // Waits for the stage, then loads its beginning.
  template <typename Config>
  __device__ __forceinline__ void enter(const Feed<Config>& feed, const Lane& lane) {
    hopper::mbarrier_wait(&feed.stages->full[feed.ring.stage], feed.ring.phase);
    block = feed.stages->weights[feed.ring.stage] + feed.warpgroup * kBlockBytes;
    load(lane, 0);
  }
};

// A step's fragment, and its rows' scales where these are not folded into it.
struct Fragment {
  std::uint32_t a[4];
  float row0;
  float row1;

  template <bool kFolded>
  __device__ __forceinline__ void decode_from(const Codes& codes, int step) {
    const std::uint32_t word0 = step % 2 == 0 ? codes.words.x : codes.words.z;
    const std::uint32_t word1 = step % 2 == 0 ? codes.words.y : codes.words.w;
    const std::uint32_t byte0 = permute_bytes(codes.row_scales[0], 0, 0x4440u + step % kGroups);
    const std::uint32_t byte1 = permute_bytes(codes.row_scales[1], 0, 0x4440u + step % kGroups);
    decode(word0, magnitudes(kFolded ? byte0 : kUnitCode), a[0], a[2]);
    decode(word1, magnitudes(kFolded ? byte1 : kUnitCode), a[1], a[3]);
    row0 = kFolded ? 1.0f : power_of_two(byte0);
    row1 = kFolded ? 1.0f : power_of_two(byte1);
  }
};

// sum += part * scales, one fused multiply-add per element.
template <int kTokens, bool kFolded>
__device__ __forceinline__ void promote(float* sum, const float (&part)[kTokens / 2],
                                        const float (&scales)[kTokens / 4],
                                        const Fragment& fragment) {
#pragma unroll
  for (int i = 0; i < kTokens / 4; ++i) {
    const int at = 4 * (i / 2) + i % 2;
    const float first = kFolded ? scales[i] : scales[i] * fragment.row0;
    const float second = kFolded ? scales[i] : scales[i] * fragment.row1;
    sum[at] = fmaf(part[at], first, sum[at]);
    sum[at + 2] = fmaf(part[at + 2], second, sum[at + 2]);
  }
}

// How a tile's tokens are cut into matrix instructions: wide tiles in halves, so that two results
// fit into registers beside the sums.
template <int kTokens>
struct Cut {
  static constexpr int kParts = kTokens > 96 ? 2 : 1;
  static constexpr int kWidth = kTokens / kParts;
  static constexpr int kUnits = kSteps * kParts;  // instructions of a stage
};

// sum = weights * tokens over all of K. While an instruction runs, the result of the one before is
// added, and the fragment of the next step is decoded; token scales are loaded one instruction
// ahead.
template <int kTokens, bool kFolded, typename Config>
__device__ __forceinline__ void multiply(float (&sum)[kTokens / 2], Feed<Config>& feed,
                                         const Lane& lane) {
  using C = Cut<kTokens>;
  constexpr int kPitch = kScalePitch<Config>;
  float part[2][C::kWidth / 2] = {};
  float scales[2][C::kWidth / 4];
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) sum[i] = 0.0f;
  Codes codes;
  codes.enter(feed, lane);
  Fragment ahead;
  ahead.template decode_from<kFolded>(codes, 0);
#pragma unroll 1
  for (int left = feed.count; left > 0; --left) {
    const int stage = feed.ring.stage;
    const std::uint32_t tokens = hopper::shared_address(feed.stages->tokens[stage]);
    const std::uint32_t stage_scales =
        hopper::shared_address(feed.stages->scales[stage] + lane.q * kPitch);
    Fragment fragment[kSteps];
    fragment[0] = ahead;
    const auto add = [&](int unit) {
      promote<C::kWidth, kFolded>(&sum[unit % C::kParts * (C::kWidth / 2)], part[unit % 2],
                                  scales[unit % 2], fragment[unit / C::kParts]);
    };
#pragma unroll
    for (int unit = 0; unit < C::kUnits; ++unit) {
      const int step = unit / C::kParts;
      const int half = unit % C::kParts;
      const std::uint32_t chunk = tokens + step / kGroups * Stages<Config>::kTokenBytes;
      start<C::kWidth>(part[unit % 2], fragment[step].a, chunk + half * (C::kWidth * kChunk),
                       step % kGroups);
      load_early(scales[unit % 2], stage_scales + step * (16 * kPitch) + half * C::kWidth);
      if (half == 0 && step % 2 == 1 && step + 1 < kSteps) codes.load(lane, step + 1);
      if (half == 0 && step + 1 < kSteps) {
        fragment[step + 1].template decode_from<kFolded>(codes, step + 1);
      }
      if (unit > 0) finish<1>(part[(unit - 1) % 2], fragment[(unit - 1) / C::kParts].a);
      if (unit > 0) add(unit - 1);
    }
    feed.ring.advance();
    if (left > 1) {
      codes.enter(feed, lane);
      ahead.template decode_from<kFolded>(codes, 0);
    }
    finish<0>(part[(C::kUnits - 1) % 2], fragment[kSteps - 1].a);
    add(C::kUnits - 1);
    __syncwarp();
    if (lane.thread % 32 == 0) hopper::mbarrier_arrive(&feed.stages->empty[stage]);
  }
}

}  // namespace deepinfer::kernels::moe_gemm
