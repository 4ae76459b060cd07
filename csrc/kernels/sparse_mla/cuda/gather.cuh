// csrc/kernels/sparse_mla/cuda/gather.cuh — the role of hopper.cu that makes tiles of stored rows:
// asks for them ahead of time, makes them bf16 and lays them out for the tensor core.
#pragma once
#include <cstdint>

#include "kernels/hopper/cp_async.cuh"
#include "kernels/sparse_mla/cuda/pipeline.cuh"
#include "kernels/sparse_mla/cuda/rows.cuh"

namespace deepinfer::kernels::sparse_mla {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// 16 bytes at `unit` of a line whose own unit 0 is at `line`: units are swizzled by exclusive or.
__device__ __forceinline__ void put(std::uint32_t line, int unit,
                                    const std::uint32_t (&values)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(line ^ (unit << 4)), "r"(values[0]),
               "r"(values[1]), "r"(values[2]), "r"(values[3])
               : "memory");
}

__device__ __forceinline__ std::uint32_t word(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

__device__ __forceinline__ uint4 load_four(std::uint32_t address) {
  uint4 d;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "r"(address)
               : "memory");
  return d;
}

// Rows that a warp asks for: of each part of a tile it has rows 4 warp to 4 warp + 3, a slot for
// four entries or for two window rows. Lane l < 16 knows the index of row l % 4 of part l / 4.
struct Fetch {
  Walk<kTile> walk;  // at the tile after this one
  int index = -1;
  int next_index = -1;
  int unit = 0;
  int units = 0;
  int tiles = 0;            // begun
  std::uint32_t kinds = 0;  // bit t % 32: tile t is of the window
  int slot = 0;
  bool window = false;

  __device__ Fetch(const Problem& problem) : walk(problem, blockIdx.x) {
    next_index = walk.index(problem, lane_row());
  }
  __device__ static int lane_row() {
    const int lane = threadIdx.x % 16;
    return lane / 4 * 16 + threadIdx.x / 32 % 4 * 4 + lane % 4;
  }
  __device__ __forceinline__ void begin_tile(const Problem& problem, Shared& shared) {
    window = walk.in_window();
    const std::int64_t pool = window ? problem.window_pool : problem.entry_pool;
    index = next_index >= 0 && next_index < pool ? next_index : -1;
    const unsigned seen = __ballot_sync(~0u, index >= 0);
    if (threadIdx.x % 32 == 0) {
      reinterpret_cast<std::uint16_t*>(&shared.visible[tiles % 8])[threadIdx.x / 32 % 4] =
          static_cast<std::uint16_t>(seen);
    }
    const std::uint32_t bit = 1u << (tiles % 32);
    kinds = window ? kinds | bit : kinds & ~bit;
    unit = 0;
    units = window ? 8 : 4;
    ++tiles;
    walk.next_tile(problem);
    next_index = walk.done(problem) ? -1 : walk.index(problem, lane_row());
  }
  // 16 bytes from byte `from` on of the row that `lane` knows, or zeros.
  __device__ __forceinline__ void copy(unsigned char* target, const std::uint8_t* pool, int bytes,
                                       int lane, int from, bool inside) const {
    const int row = __shfl_sync(~0u, index, lane);
    if (inside) {
      cp_async_16(target, pool + static_cast<std::int64_t>(max(row, 0)) * bytes + from, row >= 0);
    }
  }
  // The next slot's rows; rows that are none arrive as zeros. One group, empty at the end.
  __device__ __forceinline__ void ask(const Problem& problem, Shared& shared) {
    if (unit == units && !walk.done(problem)) begin_tile(problem, shared);
    if (unit < units) {
      const int lane = threadIdx.x % 32;
      unsigned char* target = shared.raw[threadIdx.x / 32 % 4][slot] + lane * 16;
      if (window) {  // 33 times 16 bytes a row
        const int second = lane > 0 ? 1 : 0;
        const int first = unit * 2;
        copy(target, problem.window, kWindowBytes, first, lane * 16, true);
        copy(target + 512, problem.window, kWindowBytes, first + second,
             512 + lane * 16 - second * kWindowBytes, true);
        copy(target + 1024, problem.window, kWindowBytes, first + 1,
             1024 + lane * 16 - kWindowBytes, lane < 2);
      } else {  // 18 times
#pragma unroll
        for (int k = 0; k < 3; ++k) {
          const int row = (lane + 32 * k) * 57 >> 10;
          copy(target + k * 512, problem.entries, kEntryBytes, unit * 4 + row % 4,
               (lane + 32 * k) * 16 - row * kEntryBytes, row < 4);
        }
      }
      ++unit;
    }
    cp_async_commit();
    slot = slot == kSlots - 1 ? 0 : slot + 1;
  }
};

// A lane's share of a slot. Of four entries lane l has panel l / 4 of row l % 4, in two halves of
// 32 channels; of two window rows 32 channels of row l % 2, in two halves of 16. Lanes of odd
// panels take their halves the other way round, so that eight lanes never meet on a bank.
struct Share {
  std::uint32_t first;   // bytes from the slot's start to the first half
  std::uint32_t second;  // and to the second
  std::uint32_t scale;
  std::uint32_t line;  // bytes from the tile's start to the first 16 to write, in part 0

  __device__ static Share of_entries() {
    const int lane = threadIdx.x % 32;
    const int panel = lane / 4;
    const int odd = panel & 1;
    const int row = threadIdx.x / 32 % 4 * 4 + lane % 4;
    const std::uint32_t source = lane % 4 * kEntryBytes;
    return {source + panel * 32 + 16 * odd, source + panel * 32 + 16 - 16 * odd,
            source + kChannels / 2 + panel * 4,
            static_cast<std::uint32_t>(panel * kPanelBytes + row * 128 +
                                       (((row & 7) ^ (4 * odd)) << 4))};
  }
  __device__ static Share of_window() {
    const int lane = threadIdx.x % 32;
    const int segment = lane / 2;
    const int odd = segment / 2 & 1;
    const int row = threadIdx.x / 32 % 4 * 4 + lane % 2;
    const std::uint32_t source = lane % 2 * kWindowBytes;
    return {source + segment * 32 + 16 * odd, source + segment * 32 + 16 - 16 * odd,
            source + kChannels + segment,
            static_cast<std::uint32_t>(segment / 2 * kPanelBytes + row * 128 +
                                       (((row & 7) ^ (segment % 2 * 4) ^ (2 * odd)) << 4))};
  }
};

// What a lane has taken of a slot.
struct Held {
  uint4 codes[2];
  std::uint32_t scales;
};

__device__ __forceinline__ void take(const Share& entries, const Share& rows, std::uint32_t slot,
                                     bool window, Held& held) {
  held.codes[0] = load_four(slot + (window ? rows.first : entries.first));
  held.codes[1] = load_four(slot + (window ? rows.second : entries.second));
  const std::uint32_t scale = slot + (window ? rows.scale : entries.scale);
  if (window) {
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(held.scales) : "r"(scale) : "memory");
  } else {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(held.scales) : "r"(scale) : "memory");
  }
}

__device__ __forceinline__ void convert_entries(const Held& held, std::uint32_t line) {
  EntryFactor factors[4];
  const bool odd = threadIdx.x / 4 % 2 != 0;
  entry_factors(__byte_perm(held.scales, 0, odd ? 0x1032 : 0x3210), factors);
#pragma unroll
  for (int unit = 0; unit < 8; ++unit) {
    std::uint32_t values[4];
    entry_values(word(held.codes[unit / 4], unit % 4), factors[unit / 2], values);
    put(line, unit, values);
  }
}

__device__ __forceinline__ void convert_window(const Held& held, std::uint32_t line) {
  const std::uint32_t factor = window_factor(held.scales);
#pragma unroll
  for (int unit = 0; unit < 4; ++unit) {
    std::uint32_t values[4];
    window_values(word(held.codes[unit / 2], unit % 2 * 2), factor, values);
    window_values(word(held.codes[unit / 2], unit % 2 * 2 + 1), factor, values + 2);
    put(line, unit, values);
  }
}

// Each warp by itself asks for its rows, kSlots ahead, and makes them parts of tiles. Its stores
// are made visible to the tensor core by those who wait for `full`: a fence here would stall the
// warp that has the least time to lose.
__device__ void gather_rows(const Problem& problem, Shared& shared) {
  const std::uint32_t raw = shared_address(shared.raw[threadIdx.x / 32 % 4]);
  const Share entries = Share::of_entries();
  const Share rows = Share::of_window();
  Fetch fetch(problem);
  for (int i = 0; i < kSlots; ++i) fetch.ask(problem, shared);
  Turn turn;
  std::uint32_t slot = raw;
  Held held;
  bool window = (fetch.kinds & 1) != 0;
  cp_async_wait<kSlots - 1>();
  __syncwarp();
  take(entries, rows, slot, window, held);
  for (int tile = 0; tile < fetch.tiles; ++tile) {
    const std::uint32_t keys = shared_address(shared.keys[turn.buffer]);
    const int units = window ? 8 : 4;
    bool next_window = window;
    for (int unit = 0; unit < units; ++unit) {
      if (window) {
        const int part = unit / 2;
        if (unit % 2 == 0) mbarrier_wait(&shared.free[turn.buffer][part], turn.parity ^ 1);
        convert_window(held, (keys + rows.line + unit * 256 + part * 1536) ^ (unit % 2 * 32));
      } else {
        mbarrier_wait(&shared.free[turn.buffer][unit], turn.parity ^ 1);
        convert_entries(held, keys + entries.line + unit * 2048);
      }
      cp_async_wait<kSlots - 2>();
      __syncwarp();
      if (unit == units - 1) {
        next_window = (fetch.kinds >> ((tile + 1) % 32) & 1) != 0;
        mbarrier_arrive(&shared.full[turn.buffer]);
      }
      slot = slot == raw + (kSlots - 1) * kSlotBytes ? raw : slot + kSlotBytes;
      take(entries, rows, slot, next_window, held);
      fetch.ask(problem, shared);
    }
    window = next_window;
    turn.next();
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::sparse_mla
