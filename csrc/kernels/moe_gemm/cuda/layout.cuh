// csrc/kernels/moe_gemm/cuda/layout.cuh — sizes of the packed weights, of the tiles and of shared
// memory; moe_gemm.h describes the packing.
#pragma once
#include <cstdint>

namespace deepinfer::kernels::moe_gemm {

constexpr int kTileRows = 64;  // features of a packed tile and of a matrix instruction
constexpr int kPairTiles = 2;  // packed tiles that lie side by side
constexpr int kPairs = 2;      // of a block: 256 features
constexpr int kChunk = 128;    // columns of a packed block
constexpr int kPanel = 64;     // columns of a panel of tokens: 128 bytes of bf16
constexpr int kGroups = kChunk / 32;
constexpr int kCodeBytes = kTileRows * kChunk / 2;
constexpr int kBlockBytes = kCodeBytes + kTileRows * kGroups;
constexpr int kPairBytes = kPairTiles * kBlockBytes;  // of a chunk
constexpr int kMaxExperts = 512;
constexpr int kHandedOver =
    256 * 128;             // sums of a block: features times the tokens of a large tile
constexpr int kFlags = 4;  // of a block, one per warpgroup

// Few tokens: decoding is what takes time, and four warps per scheduler hide its latency.
struct Small {
  static constexpr int kTokens = 64;  // of a tile
  static constexpr int kBox = 16;     // token rows of one copy, and what N is a multiple of
  static constexpr int kChunks = 2;   // of a stage
  static constexpr int kStages = 3;
  static constexpr int kWarpgroups = 4;  // that multiply
  static constexpr int kTiles = 1;       // packed tiles of each
  static constexpr int kConsumerRegisters = 112;
  static constexpr int kProducerRegisters = 32;
};

// Many: the matrix unit is, and the sums need the registers.
struct Large {
  static constexpr int kTokens = 128;
  static constexpr int kBox = 32;
  static constexpr int kChunks = 1;
  static constexpr int kStages = 4;
  static constexpr int kWarpgroups = 2;
  static constexpr int kTiles = 2;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kProducerRegisters = 40;
};

template <typename Config>
inline constexpr int kThreads = 128 * (Config::kWarpgroups + 1);

template <typename Config>
struct Stages {
  static constexpr int kCount = Config::kStages;
  static constexpr int kPanels = Config::kChunks * kChunk / kPanel;
  static constexpr int kPanelBytes = Config::kTokens * kPanel * 2;
  static constexpr int kPairBytesOfStage = Config::kChunks * kPairBytes;
  static constexpr int kWeightBytes = kPairs * kPairBytesOfStage;  // [pair][chunk][tile]
  static_assert(Config::kWarpgroups * Config::kTiles == kPairs * kPairTiles);

  alignas(1024) std::uint8_t tokens[kCount][kPanels * kPanelBytes];
  alignas(128) std::uint8_t weights[kCount][kWeightBytes];
  alignas(8) std::uint64_t full[kCount];
  std::uint64_t empty[kCount];
};

template <typename Config, typename Epilogue>
struct Shared {
  Stages<Config> stages;
  alignas(16) typename Epilogue::template Scratch<Config::kTokens> scratch[Config::kWarpgroups];
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
  const std::int32_t* offsets;
  const std::uint8_t* weight;
  const float* row_factor;
  int rows;
  int experts;
  int chunks;         // along k, those that hold columns
  int packed_chunks;  // of a pair: an even number
  int pairs;          // of packed tiles, per expert
  int quads;          // of two pairs: the features of a block; the last may be half
  float* sums;        // [blocks, kHandedOver], and flags [blocks, 4]: see handover.cuh
  int* flags;         // null: tiles are not cut
  int blocks;         // that those two have room for

  template <typename Config>
  __host__ __device__ int stages() const {
    return (chunks + Config::kChunks - 1) / Config::kChunks;
  }
};

}  // namespace deepinfer::kernels::moe_gemm
