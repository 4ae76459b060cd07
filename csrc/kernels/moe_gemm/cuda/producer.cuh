// csrc/kernels/moe_gemm/cuda/producer.cuh — fills the ring of stages: one lane issues the copies of
// weights and tokens, other warps turn activation scales into floats.
#pragma once
#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/moe_gemm/cuda/layout.cuh"
#include "kernels/moe_gemm/cuda/schedule.cuh"

namespace deepinfer::kernels::moe_gemm {

template <typename Config>
__device__ void copy_tiles(const CUtensorMap& map, const Problem& problem, Stages<Config>& stages,
                           Schedule<Config> schedule) {
  using S = Stages<Config>;
  const std::uint64_t once = hopper::evict_first_policy();
  const std::uint64_t often = hopper::evict_last_policy();
  Ring<S::kCount> ring;
  Work work;
  while (schedule.next(work)) {
    const int boxes = (work.rows + Config::kBox - 1) / Config::kBox;
    const std::uint32_t bytes = S::kWeightBytes + kDepth * boxes * (Config::kBox * kChunk);
    const std::uint8_t* weight =
        problem.weight + (static_cast<std::int64_t>(work.expert) * problem.pairs + work.pair) *
                             problem.stages * S::kWeightBytes;
    for (int at = 0; at < problem.stages; ++at) {
      std::uint64_t* full = &stages.full[ring.stage];
      hopper::mbarrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
      hopper::mbarrier_arrive_expect(full, bytes);
      hopper::bulk_copy(stages.weights[ring.stage], weight, S::kWeightBytes, full, once);
#pragma unroll
      for (int chunk = 0; chunk < kDepth; ++chunk) {
        std::uint8_t* tokens = stages.tokens[ring.stage] + chunk * S::kTokenBytes;
#pragma unroll 1
        for (int box = 0; box < boxes; ++box) {
          hopper::tensor_copy_2d(tokens + box * (Config::kBox * kChunk), &map,
                                 (kDepth * at + chunk) * kChunk,
                                 work.first_row + box * Config::kBox, full, often);
        }
      }
      weight += S::kWeightBytes;
      ring.advance();
    }
  }
}

// The eight scale bytes of a row in a stage; those past the end are 0.
__device__ __forceinline__ uint2 load_scales(const std::uint8_t* row, int groups, int stage) {
  if (groups % kSteps == 0) return __ldg(reinterpret_cast<const uint2*>(row) + stage);
  std::uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int group = kSteps * stage + i;
    if (group < groups) words[i / 4] |= static_cast<std::uint32_t>(row[group]) << (8 * (i % 4));
  }
  return make_uint2(words[0], words[1]);
}

__device__ __forceinline__ float power_of_two(std::uint32_t code) {
  return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
}

// One of Config::kScaleWarps warps; `lane` counts through all of them. Loads run two stages ahead.
template <typename Config>
__device__ void write_scales(const Problem& problem, Stages<Config>& stages,
                             Schedule<Config> schedule, int lane) {
  constexpr int kLanes = 32 * Config::kScaleWarps;
  constexpr int kEach = Config::kTokens / kLanes;
  constexpr int kPitch = kScalePitch<Config>;
  Ring<Stages<Config>::kCount> ring;
  Work work;
  while (schedule.next(work)) {
    const std::uint8_t* row[kEach];
    uint2 next[kEach];
    uint2 after[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = min(lane + i * kLanes, work.rows - 1);
      row[i] = problem.x_scale + static_cast<std::int64_t>(work.first_row + token) * problem.groups;
      next[i] = load_scales(row[i], problem.groups, 0);
      after[i] = load_scales(row[i], problem.groups, min(1, problem.stages - 1));
    }
    for (int at = 0; at < problem.stages; ++at) {
      uint2 now[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        now[i] = next[i];
        next[i] = after[i];
        if (at + 2 < problem.stages) after[i] = load_scales(row[i], problem.groups, at + 2);
      }
      hopper::mbarrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int token = lane + i * kLanes;
        float* to = stages.scales[ring.stage] + token % 8 / 2 * kPitch + token / 8 * 2 + token % 2;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const std::uint32_t word = step < 4 ? now[i].x : now[i].y;
          to[step * 4 * kPitch] = power_of_two(word >> (8 * (step % 4)) & 0xFF);
        }
      }
      __syncwarp();
      if (lane % 32 == 0) hopper::mbarrier_arrive(&stages.full[ring.stage]);
      ring.advance();
    }
  }
}

}  // namespace deepinfer::kernels::moe_gemm
