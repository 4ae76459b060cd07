// csrc/kernels/moe_gemm/cuda/producer.cuh — fills the ring of stages: one lane issues the copies of
// weights (one per warpgroup) and tokens (boxes of 64 columns).
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
    constexpr int kBoxBytes = Config::kBox * kPanel * 2;
    const int boxes = (work.rows + Config::kBox - 1) / Config::kBox;
    const std::uint32_t bytes = S::kWeightBytes + S::kPanels * boxes * kBoxBytes;
    const std::uint8_t* weight[kPairs];
#pragma unroll
    for (int w = 0; w < kPairs; ++w) {
      // The second half of an odd last quad repeats the first: it is computed and not stored.
      const int pair = min(kPairs * work.quad + w, problem.pairs - 1);
      weight[w] =
          problem.weight +
          ((static_cast<std::int64_t>(work.expert) * problem.pairs + pair) * problem.packed_chunks +
           work.begin * Config::kChunks) *
              kPairBytes;
    }
#pragma unroll 1
    for (int at = work.begin * Config::kChunks; at < work.end * Config::kChunks;
         at += Config::kChunks) {
      std::uint64_t* full = &stages.full[ring.stage];
      hopper::mbarrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
      hopper::mbarrier_arrive_expect(full, bytes);
#pragma unroll
      for (int w = 0; w < kPairs; ++w) {
        hopper::bulk_copy(stages.weights[ring.stage] + w * S::kPairBytesOfStage, weight[w],
                          S::kPairBytesOfStage, full, once);
        weight[w] += S::kPairBytesOfStage;
      }
#pragma unroll
      for (int panel = 0; panel < S::kPanels; ++panel) {
        std::uint8_t* tokens = stages.tokens[ring.stage] + panel * S::kPanelBytes;
#pragma unroll 1
        for (int box = 0; box < boxes; ++box) {
          hopper::tensor_copy_2d(tokens + box * kBoxBytes, &map, at * kChunk + panel * kPanel,
                                 work.first_row + box * Config::kBox, full, often);
        }
      }
      ring.advance();
    }
  }
}

}  // namespace deepinfer::kernels::moe_gemm
