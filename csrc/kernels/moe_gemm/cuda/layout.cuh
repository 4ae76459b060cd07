// csrc/kernels/moe_gemm/cuda/layout.cuh — sizes of the packed weights, of the tiles and of shared
// memory; moe_gemm.h describes the packing.
#pragma once
#include <cstdint>

namespace deepinfer::kernels::moe_gemm {

constexpr int kTileRows = 64;  // features of one warpgroup
constexpr int kChunk = 128;    // columns of a packed block
constexpr int kDepth = 2;      // chunks of a pipeline stage
constexpr int kGroups = kChunk / 32;
constexpr int kSteps = kDepth * kGroups;  // matrix instructions along a stage: one per group of 32
constexpr int kCodeBytes = kTileRows * kChunk / 2;
constexpr int kBlockBytes = kCodeBytes + kTileRows * kGroups;
constexpr int kConsumers = 2;  // warpgroups that multiply; one more feeds them
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kMaxExperts = 512;

// Few rows per expert: two blocks on a multiprocessor hide each other's waits.
struct Narrow {
  static constexpr int kTokens = 32;  // of a tile
  static constexpr int kBox = 8;      // token rows of one copy
  static constexpr int kStages = 3;
  static constexpr int kBlocks = 2;  // on a multiprocessor
  static constexpr int kScaleWarps = 1;
  static constexpr int kConsumerRegisters = 104;
  static constexpr int kProducerRegisters = 32;
};

struct Wide {
  static constexpr int kTokens = 128;
  static constexpr int kBox = 32;
  static constexpr int kStages = 3;
  static constexpr int kBlocks = 1;
  static constexpr int kScaleWarps = 2;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kProducerRegisters = 40;
};

// Activation scales of a stage as floats [step][q][pitch]: token 8 j + 2 q + c at 2 j + c, so that
// a thread reads the tokens of its accumulators in 16-byte words; the pitch avoids bank conflicts.
template <typename Config>
constexpr int kScalePitch = Config::kTokens / 4 + 4;

template <typename Config>
struct Stages {
  static constexpr int kCount = Config::kStages;
  static constexpr int kTokenBytes = Config::kTokens * kChunk;  // of a chunk
  static constexpr int kWeightBytes = kDepth * kConsumers * kBlockBytes;
  static constexpr int kScales = kSteps * 4 * kScalePitch<Config>;

  alignas(1024) std::uint8_t tokens[kCount][kDepth * kTokenBytes];
  alignas(128) std::uint8_t weights[kCount][kWeightBytes];
  alignas(16) float scales[kCount][kScales];
  alignas(8) std::uint64_t full[kCount];
  std::uint64_t empty[kCount];
};

template <typename Config, typename Epilogue>
struct Shared {
  Stages<Config> stages;
  alignas(16) typename Epilogue::template Scratch<Config::kTokens> scratch[kConsumers];
  int first_tile[kMaxExperts + 1];
  int first_row[kMaxExperts + 1];
};

// Position in the ring of stages.
template <int kCount>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kCount) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Problem {
  const std::uint8_t* x_scale;
  const std::int32_t* offsets;
  const std::uint8_t* weight;
  const float* row_factor;
  int rows;
  int experts;
  int groups;  // k / 32
  int stages;  // along k, chunks beyond it being zeros
  int pairs;   // of tiles, per expert
};

}  // namespace deepinfer::kernels::moe_gemm
