// csrc/kernels/moe_gemm/cuda/producer.cuh — fills the ring of stages: one lane issues the copies of
// weights and tokens, other warps turn activation scales into floats.
#pragma once
#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/moe_gemm/cuda/layout.cuh"
#include "kernels/moe_gemm/cuda/schedule.cuh"

namespace deepinfer::kernels::moe_gemm {

template <typename Config>
__device__ void copy_tiles(const CUtensorMap& map, const Problem& problem, Stages<Config>& stages,
                           Schedule<Config::kTokens> schedule) {
  using S = Stages<Config>;
  const std::uint64_t once = hopper::evict_first_policy();
  const std::uint64_t often = hopper::evict_last_policy();
  Ring<S::kCount> ring;
  Work work;
  while (schedule.next(work)) {
    const int boxes = (work.rows + Config::kBox - 1) / Config::kBox;
    const std::uint32_t bytes = S::kWeightBytes + boxes * (Config::kBox * kChunk);
    const std::uint8_t* weight =
        problem.weight + (static_cast<std::int64_t>(work.expert) * problem.pairs + work.pair) *
                             problem.chunks * S::kWeightBytes;
    for (int chunk = 0; chunk < problem.chunks; ++chunk) {
      std::uint64_t* full = &stages.full[ring.stage];
      hopper::mbarrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
      hopper::mbarrier_arrive_expect(full, bytes);
      hopper::bulk_copy(stages.weights[ring.stage], weight, S::kWeightBytes, full, once);
      for (int box = 0; box < boxes; ++box) {
        hopper::tensor_copy_2d(stages.tokens[ring.stage] + box * (Config::kBox * kChunk), &map,
                               chunk * kChunk, work.first_row + box * Config::kBox, full, often);
      }
      weight += S::kWeightBytes;
      ring.advance();
    }
  }
}

// The eight scale bytes of two chunks of one row; bytes past the end are 0.
__device__ __forceinline__ uint2 load_scales(const std::uint8_t* row, int groups, int two_chunks) {
  if (groups % 8 == 0) return __ldg(reinterpret_cast<const uint2*>(row) + two_chunks);
  std::uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int group = 8 * two_chunks + i;
    if (group < groups) words[i / 4] |= static_cast<std::uint32_t>(row[group]) << (8 * (i % 4));
  }
  return make_uint2(words[0], words[1]);
}

__device__ __forceinline__ float power_of_two(std::uint32_t code) {
  return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
}

// One of Config::kScaleWarps warps; `lane` counts through all of them.
template <typename Config>
__device__ void write_scales(const Problem& problem, Stages<Config>& stages,
                             Schedule<Config::kTokens> schedule, int lane) {
  constexpr int kLanes = 32 * Config::kScaleWarps;
  constexpr int kEach = Config::kTokens / kLanes;
  constexpr int kPitch = kScalePitch<Config>;
  Ring<Stages<Config>::kCount> ring;
  Work work;
  while (schedule.next(work)) {
    const std::uint8_t* row[kEach];
    uint2 ahead[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = min(lane + i * kLanes, work.rows - 1);
      row[i] = problem.x_scale + static_cast<std::int64_t>(work.first_row + token) * problem.groups;
      ahead[i] = load_scales(row[i], problem.groups, 0);
    }
    uint2 now[kEach];
    for (int chunk = 0; chunk < problem.chunks; ++chunk) {
      if (chunk % 2 == 0) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          now[i] = ahead[i];
          if (chunk + 2 < problem.chunks) {
            ahead[i] = load_scales(row[i], problem.groups, chunk / 2 + 1);
          }
        }
      }
      hopper::mbarrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int token = lane + i * kLanes;
        float* to = stages.scales[ring.stage] + token % 8 / 2 * kPitch + token / 8 * 2 + token % 2;
        const std::uint32_t word = chunk % 2 == 0 ? now[i].x : now[i].y;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          to[step * 4 * kPitch] = power_of_two(word >> (8 * step) & 0xFF);
        }
      }
      __syncwarp();
      if (lane % 32 == 0) hopper::mbarrier_arrive(&stages.full[ring.stage]);
      ring.advance();
    }
  }
}

}  // namespace deepinfer::kernels::moe_gemm
