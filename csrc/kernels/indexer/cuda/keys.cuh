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

// Four E2M1 codes, their magnitudes at bits 2 to 4 of each byte and their signs at bit 7: E4M3
// bytes of 2^-6 times the values, 0.5 included. `signs` has no other bits but some that the mask
// hides. One instruction; written out, the compiler would take two.
__device__ __forceinline__ std::uint32_t place_codes(std::uint32_t magnitudes,
                                                     std::uint32_t signs) {
  std::uint32_t codes;
  constexpr int kSelect = (0xF0 & 0xAA) | (0xCC & ~0xAA & 0xFF);  // the mask chooses
  asm("lop3.b32 %0, %1, %2, %3, %4;"
      : "=r"(codes)
      : "r"(magnitudes), "r"(signs), "r"(0x1C1C1C1Cu), "n"(kSelect));
  return codes;
}

// Words of eight codes and of four scales, of the keys lane / 4 and lane / 4 + 8.
struct PackedKeys {
  std::uint32_t codes[kGroups][2];
  std::uint32_t scales[2];
};

__device__ __forceinline__ void decode_codes(const std::uint32_t (&codes)[2],
                                             std::uint32_t (&fragment)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t signs;
    asm("and.b32 %0, %1, 0x88888888;" : "=r"(signs) : "r"(codes[half]));
    fragment[half] = place_codes(codes[half] << 2, signs << 4);
    fragment[2 + half] = place_codes(codes[half] >> 2, signs);
  }
}

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

  // What this lane needs of its keys lane / 4 and lane / 4 + 8.
  __device__ __forceinline__ void read(int stage, PackedKeys& keys) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::uint8_t* from = from_codes_[g] + stage * kTileKeys * kCodeBytes;
      keys.codes[g][0] = *reinterpret_cast<const std::uint32_t*>(from);
      keys.codes[g][1] = *reinterpret_cast<const std::uint32_t*>(from + 512);
    }
    const std::uint8_t* scales = from_scales_ + stage * kTileKeys * kScaleBytes;
    keys.scales[0] = *reinterpret_cast<const std::uint32_t*>(scales);
    keys.scales[1] = *reinterpret_cast<const std::uint32_t*>(scales + 8 * kScaleBytes);
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
