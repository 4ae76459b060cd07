// csrc/kernels/moe_gemm/cuda/consumer.cuh — the main loop of one warpgroup: its features times a
// tile of tokens over all of K. Sums stay in the accumulators from the first column to the last. A
// batch is four matrix instructions, 64 columns of one packed tile; while one batch runs, the next
// is decoded.
#pragma once
#include "kernels/hopper/mma_sync.cuh"
#include "kernels/hopper/wgmma_bf16_registers.cuh"
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
  int warpgroup;
};

// Batches of a stage: all its panels of 64 columns with one tile, then with the next.
template <typename Config>
inline constexpr int kBatches = Config::kTiles * Stages<Config>::kPanels;

// The packed weights of one thread for one batch, and the scales of its two rows in the chunk.
struct Codes {
  uint4 words;
  RowScales scales[2];

  // `tiles`: where enter() points; every second panel begins a packed block.
  template <typename Config>
  __device__ __forceinline__ void load(const std::uint8_t* tiles, const Lane& lane, int batch) {
    const int panel = batch % Stages<Config>::kPanels;
    const std::uint8_t* block =
        tiles + panel / 2 * kPairBytes + batch / Stages<Config>::kPanels * kBlockBytes;
    words = reinterpret_cast<const uint4*>(block)[panel % 2 * 128 + lane.thread];
    if (panel % 2 != 0) return;
    const uint2 both = reinterpret_cast<const uint2*>(block + kCodeBytes)[8 * lane.warp + lane.g];
    scales[0].from(both.x);
    scales[1].from(both.y);
  }

  // The fragments of four instructions, from two words each of rows g and g + 8.
  template <int kHalf>
  __device__ __forceinline__ void decode(std::uint32_t (&a)[16]) const {
    decode_word(words.x, Scale<kHalf>{scales[0].even}, a[0], a[2], a[4], a[6]);
    decode_word(words.y, Scale<kHalf>{scales[1].even}, a[1], a[3], a[5], a[7]);
    decode_word(words.z, Scale<kHalf>{scales[0].odd}, a[8], a[10], a[12], a[14]);
    decode_word(words.w, Scale<kHalf>{scales[1].odd}, a[9], a[11], a[13], a[15]);
  }

  __device__ __forceinline__ void decode(std::uint32_t (&a)[16], int batch) const {
    if (batch % 2 == 0) {
      decode<0>(a);
    } else {
      decode<1>(a);
    }
  }
};

// Waits for the stage; its first block of the warpgroup's first tile.
template <typename Config>
__device__ __forceinline__ const std::uint8_t* enter(const Feed<Config>& feed) {
  hopper::mbarrier_wait(&feed.stages->full[feed.ring.stage], feed.ring.phase);
  const int tile = Config::kTiles * feed.warpgroup;
  return feed.stages->weights[feed.ring.stage] +
         tile / kPairTiles * Stages<Config>::kPairBytesOfStage + tile % kPairTiles * kBlockBytes;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// sums[tile] += weights of the tile * tokens over `stages` along k. Every stage ends with nothing
// in flight, its successor's first fragment decoded: the compiler does not keep a matrix
// instruction whose operand is in registers running across the end of a loop.
template <int kTokens, typename Config>
__device__ __forceinline__ void multiply(float (&sums)[Config::kTiles][kTokens / 2],
                                         Feed<Config>& feed, int stages, const Lane& lane) {
  using S = Stages<Config>;
  constexpr int kTiles = Config::kTiles;
  constexpr int kCount = kBatches<Config>;
  std::uint32_t ahead[16];
  Codes codes;
  const std::uint8_t* tiles = enter(feed);
  codes.template load<Config>(tiles, lane, 0);
  codes.decode(ahead, 0);
#pragma unroll 1
  for (int left = stages; left > 0; --left) {
    const int stage = feed.ring.stage;
    const std::uint32_t tokens = hopper::shared_address(feed.stages->tokens[stage]) >> 4 | 1u << 16;
    feed.ring.advance();
    std::uint32_t a[kCount][16];
#pragma unroll
    for (int i = 0; i < 16; ++i) a[0][i] = ahead[i];
#pragma unroll
    for (int batch = 0; batch < kCount; ++batch) {
      std::uint32_t (&now)[16] = a[batch];
      hopper::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const std::uint32_t b = tokens + (batch % S::kPanels * S::kPanelBytes) / 16 + 2 * step;
        hopper::wgmma_bf16_registers(sums[batch / S::kPanels], now[4 * step], now[4 * step + 1],
                                     now[4 * step + 2], now[4 * step + 3], b);
      }
      hopper::wgmma_commit();
      if (batch + 1 < kCount) {
        codes.template load<Config>(tiles, lane, batch + 1);
      } else if (left > 1) {
        tiles = enter(feed);
        codes.template load<Config>(tiles, lane, 0);
      }
      if (batch > 0) {
        hopper::wgmma_wait_registers<1>();
        hopper::wgmma_pin_registers(a[batch - 1]);
      }
      if (batch + 1 < kCount) {
        codes.decode(a[batch + 1], batch + 1);
      } else if (left > 1) {
        codes.decode(ahead, 0);
      }
    }
    hopper::wgmma_wait_registers<0>();
    hopper::wgmma_pin_registers(a[kCount - 1]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) hopper::wgmma_pin_registers(sums[tile]);
    hopper::mbarrier_arrive(&feed.stages->empty[stage]);
  }
}

#else

__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

// sum += one instruction's 16 columns of a packed tile times `step`'s of the tokens' panel.
template <int kTokens>
__device__ __forceinline__ void multiply_step(float (&sum)[kTokens / 2],
                                              const std::uint32_t (&a)[4], std::uint32_t panel,
                                              int step, const Lane& lane) {
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const std::uint32_t row = panel + (8 * j + lane.g) * (2 * kPanel) + 4 * lane.q;
    float (&d)[4] = reinterpret_cast<float (&)[4]>(sum[4 * j]);
    hopper::mma_bf16_16x8x16(d, a, load_shared_word(row + ((2 * step) ^ lane.g) * 16),
                             load_shared_word(row + ((2 * step + 1) ^ lane.g) * 16));
  }
}

// The same with the matrix instruction of a warp, which every device has.
template <int kTokens, typename Config>
__device__ __forceinline__ void multiply(float (&sums)[Config::kTiles][kTokens / 2],
                                         Feed<Config>& feed, int stages, const Lane& lane) {
  using S = Stages<Config>;
  constexpr int kTiles = Config::kTiles;
  Codes codes;
#pragma unroll 1
  for (int left = stages; left > 0; --left) {
    const std::uint8_t* tiles = enter(feed);
    const std::uint32_t tokens = hopper::shared_address(feed.stages->tokens[feed.ring.stage]);
#pragma unroll
    for (int batch = 0; batch < kBatches<Config>; ++batch) {
      std::uint32_t a[16];
      codes.template load<Config>(tiles, lane, batch);
      codes.decode(a, batch);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const std::uint32_t four[4] = {a[4 * step], a[4 * step + 1], a[4 * step + 2],
                                       a[4 * step + 3]};
        multiply_step<kTokens>(sums[batch / S::kPanels], four,
                               tokens + batch % S::kPanels * S::kPanelBytes, step, lane);
      }
    }
    hopper::mbarrier_arrive(&feed.stages->empty[feed.ring.stage]);
    feed.ring.advance();
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::moe_gemm
