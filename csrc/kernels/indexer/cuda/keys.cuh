// csrc/kernels/indexer/cuda/keys.cuh — index keys from pages to matrix fragments. Each warp has its
// own ring of tiles of 16 keys in shared memory and waits for nobody else.
#pragma once
#include <cstdint>

#include "kernels/hopper/cp_async.cuh"
#include "kernels/indexer/cuda/multiply.cuh"

namespace deepinfer::kernels::indexer {

constexpr int kTileKeys = 16;  // per warp
constexpr int kBlockKeys = 8;  // of a candidate block
constexpr int kCodeBytes = 64;
constexpr int kScaleBytes = 4;
constexpr int kStages = 4;

// Key r's 16-byte unit g, one group of channels, lies at unit g ^ (r / 2 % 4) of its 64 bytes: the
// eight keys that a warp reads one group of at once are then in different banks.
struct Ring {
  std::uint8_t codes[kStages][kTileKeys * kCodeBytes];
  std::uint8_t scales[kStages][kTileKeys * kScaleBytes];
};

// Where neighbouring records are: 16 in the dense pass, 8 of a candidate block.
struct alignas(16) Records {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
};

struct Pages {
  const std::uint8_t* base;
  std::int64_t bytes;
  int log_entries;

  __device__ __forceinline__ Records at(int page, int entry) const {
    const std::uint8_t* start = base + page * bytes;
    return {start + entry * kCodeBytes, start + (kCodeBytes << log_entries) + entry * kScaleBytes};
  }
};

// A lane's view of its warp's ring.
class RingView {
 public:
  __device__ __forceinline__ explicit RingView(Ring& ring) {
    const unsigned lane = threadIdx.x % 32;
    to_codes_ = ring.codes[0] + lane / 4 * kCodeBytes + (lane % 4 ^ lane / 8 % 4) * 16;
    to_scales_ = ring.scales[0] + lane * 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      from_codes_[g] =
          ring.codes[0] + lane / 4 * kCodeBytes + (g ^ lane / 8 % 4) * 16 + lane % 4 * 4;
    from_scales_ = ring.scales[0] + lane / 4 * kScaleBytes;
  }

  // Starts the copy of eight records into half of a tile; `codes` is this lane's part.
  __device__ __forceinline__ void copy_codes(int stage, int half, const std::uint8_t* codes) const {
    hopper::cp_async_16(to_codes_ + stage * kTileKeys * kCodeBytes + half * 512, codes);
  }

  // By four lanes, for a whole tile.
  __device__ __forceinline__ void copy_scales(int stage, const std::uint8_t* scales) const {
    hopper::cp_async_16(to_scales_ + stage * kTileKeys * kScaleBytes, scales);
  }

  // The fragments and the scales of this lane's keys lane / 4 and lane / 4 + 8.
  __device__ __forceinline__ void read(int stage, KeyFragments& keys,
                                       std::uint32_t (&scales)[2]) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::uint8_t* from = from_codes_[g] + stage * kTileKeys * kCodeBytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto word = *reinterpret_cast<const std::uint32_t*>(from + half * 512);
        // An E2M1 code two bits up is an E4M3 byte of 2^-6 times the value, 0.5 included.
        keys[g][half] = (word << 2 & 0x1C1C1C1Cu) | (word << 4 & 0x80808080u);
        keys[g][2 + half] = (word >> 2 & 0x1C1C1C1Cu) | (word & 0x80808080u);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales[half] = *reinterpret_cast<const std::uint32_t*>(
          from_scales_ + stage * kTileKeys * kScaleBytes + half * 8 * kScaleBytes);
    }
  }

 private:
  std::uint8_t* to_codes_;
  std::uint8_t* to_scales_;
  const std::uint8_t* from_codes_[kGroups];
  const std::uint8_t* from_scales_;
};

// 2^(byte - 127) of one group.
__device__ __forceinline__ float decode_scale(std::uint32_t scales, int group) {
  const std::uint32_t bits = group < 3 ? scales << (23 - 8 * group) : scales >> 1;
  return __uint_as_float(bits & 0x7F800000u);
}

}  // namespace deepinfer::kernels::indexer
