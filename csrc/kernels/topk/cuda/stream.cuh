// csrc/kernels/topk/cuda/stream.cuh — a block of threads reads its slice of a row once and keeps
// what may be among the k best.
//
// The slice streams through shared memory in chunks. A floor tells what may be: a score that k
// entries are known to reach. Each warp finds what its share of k of its lanes' best scores reach,
// and the lowest of these holds for the row. The kept lie in any order, with their places. When
// there is no room for a chunk they are cut to k.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/hopper/cluster.cuh"
#include "kernels/hopper/cp_async.cuh"
#include "kernels/topk/cuda/rank.cuh"

namespace deepinfer::kernels::topk {

constexpr int kBlockSize = 8;  // entries of a candidate block
constexpr int kFewest = 512;   // what the smaller class of k holds
constexpr int kMost = 2048;    // and the larger
constexpr int kCluster = 8;    // blocks that share a row, at most

// kBest: the k that there is room for. kUnit: scores of an entry, 1 or kBlockSize.
template <int kThreads_, int kLoads_, int kStages_, int kRoom_, int kBest_, int kUnit_>
struct Shape {
  static constexpr int kThreads = kThreads_, kLoads = kLoads_, kStages = kStages_;
  static constexpr int kRoom = kRoom_, kBest = kBest_, kUnit = kUnit_;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kWarpScores = 128 * kLoads;  // contiguous scores of a warp in a chunk
  static constexpr int kChunk = kWarps * kWarpScores;
  static constexpr int kOwn = 4 * kLoads / kUnit;  // entries of a thread in a chunk
  static constexpr int kSteps = kUnit == 1 ? kLoads : 1;
  static constexpr int kStep = kThreads * kOwn / kSteps;  // entries that may come at once
  static constexpr int kGroups = kUnit == 1 ? std::max(1, 2 * kBest / kThreads) : 1;
  static constexpr int kBinWords = std::max(kBins, 2 * kBest);
  static_assert(kUnit == 1 ? kGroups <= kOwn : kOwn == 1);
  static_assert(kRoom >= kBest + kStep);  // what is cut to k has room for a step more
  static_assert(kStages * kChunk >= kBest);
};

template <typename S>
struct Memory {
  float stages[S::kStages][S::kChunk];  // in the end the chosen places
  std::uint32_t keys[S::kRoom];
  std::uint32_t places[S::kRoom];
  std::uint32_t bins[S::kBinWords];
  Board board;
  std::uint32_t added[4];         // entries that came in a chunk, in three in turn; in a step
  std::uint32_t hints[kCluster];  // keys: each block's share of k entries reaches its hint
  std::uint32_t kept;
};

struct Task {
  const float* scores;
  const std::int32_t* visible;
  const std::int32_t* blocks;  // of select, may be null
  std::int32_t* out;
  std::int32_t* count;
  std::int32_t* entries;  // of candidate_blocks
  std::int32_t columns;
  std::int32_t k;
  std::int32_t cluster;  // its binary logarithm
};

// The row of this block and its slice of the scores.
struct Slice {
  const float* scores;
  int row, rank, visible, begin, end;

  __device__ explicit Slice(const Task& task)
      : row(static_cast<int>(blockIdx.x >> task.cluster)),
        rank(task.cluster == 0 ? 0 : static_cast<int>(hopper::cluster_rank())) {
    scores = task.scores + static_cast<std::int64_t>(row) * task.columns;
    visible = min(max(task.visible[row], 0), task.columns);
    const int units = (visible + kBlockSize - 1) / kBlockSize;
    const int part = ((units + (1 << task.cluster) - 1) >> task.cluster) * kBlockSize;
    begin = min(visible, rank * part);
    end = min(visible, begin + part);
  }
};

template <typename S>
class Stream {
 public:
  __device__ Stream(Memory<S>& memory, const Task& task, const Slice& slice)
      : memory_(memory),
        slice_(slice),
        k_(task.k),
        cluster_(task.cluster),
        team_{memory.board, memory.bins} {
#pragma unroll
    for (float& best : best_) best = -INFINITY;
    if (threadIdx.x < 4) memory.added[threadIdx.x] = 0;
    if (threadIdx.x < kCluster) memory.hints[threadIdx.x] = 0;
    chunks_ = (slice.end - slice.begin + S::kChunk - 1) / S::kChunk;
    // A floor needs k groups that have seen an entry: every lane has at the first load.
    const int shared = S::kWarps << cluster_;
    wanted_ = (k_ + shared - 1) / shared;
    can_rise_ = S::kUnit == 1 && wanted_ <= 16 * S::kGroups &&
                (slice.visible >> cluster_) - 64 >= 4 * S::kThreads;
  }

  // Keeps of the slice what may be among its k best.
  __device__ List run() {
#pragma unroll
    for (int c = 0; c < S::kStages - 1; ++c) fetch(c);
    if (cluster_ == 0) {
      __syncthreads();
    } else {
      hopper::cluster_arrive();  // the hints are clear
    }
    for (int c = 0; c < chunks_; ++c) {
      hopper::cp_async_wait<S::kStages - 2>();
      __syncwarp();  // a warp reads what its lanes have copied, and has read the stage before
      fetch(c + S::kStages - 1);
      consume(c);
    }
    if (cluster_ != 0 && chunks_ == 0) meet_first();
    return list();
  }

  // Cuts what is kept to the k best. What comes in a later chunk loses against equals.
  __device__ void compact() {
    __syncthreads();
    const Cut cut = cut_after(team_, list(), k_);
    if (threadIdx.x == 0) memory_.board.few = 0;
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < kept_; i += S::kThreads) {
      const std::uint32_t key = memory_.keys[i], place = memory_.places[i];
      if (!cut.takes(key, place)) continue;
      const std::uint32_t slot = atomicAdd(&memory_.board.few, 1u);
      memory_.bins[slot] = key;
      memory_.bins[S::kBest + slot] = place;
    }
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < k_; i += S::kThreads) {
      memory_.keys[i] = memory_.bins[i];
      memory_.places[i] = memory_.bins[S::kBest + i];
    }
    __syncthreads();
    kept_ = k_;
    floor_ = fmaxf(floor_, to_score(cut.key));
    if (cut.place != kAll)
      next_floor_ = cut.key >= kKeyOfInfinity ? INFINITY : to_score(cut.key + 1);
  }

  __device__ List list() const { return {memory_.keys, memory_.places, kept_}; }
  __device__ Team<S::kThreads>& team() { return team_; }

 private:
  // Of a chunk. The lanes of a warp copy neighbours; all blocks of 8 that it reads, it has copied.
  __device__ int lane_score(int load) const {
    if constexpr (S::kUnit == 1) return (load * S::kThreads + static_cast<int>(threadIdx.x)) * 4;
    return (team_.warp * S::kLoads + load) * 128 + team_.lane * 4;
  }

  // Rows end at a multiple of 4 scores: what is copied beyond the slice lies in the row.
  __device__ void fetch(int chunk) {
    float* stage = memory_.stages[chunk % S::kStages];
    const int base = slice_.begin + chunk * S::kChunk;
#pragma unroll
    for (int j = 0; j < S::kLoads; ++j) {
      const int at = lane_score(j);
      if (base + at < slice_.end) hopper::cp_async_16(stage + at, slice_.scores + base + at);
    }
    hopper::cp_async_commit();
  }

  // The thread's entries of a chunk; -infinity for those that do not exist.
  __device__ void read(const float* stage, int base, float (&value)[S::kOwn]) const {
    if constexpr (S::kUnit == 1) {
#pragma unroll
      for (int j = 0; j < S::kLoads; ++j) {
        const float4 four = *reinterpret_cast<const float4*>(stage + lane_score(j));
        value[4 * j] = four.x, value[4 * j + 1] = four.y;
        value[4 * j + 2] = four.z, value[4 * j + 3] = four.w;
      }
      if (base + S::kChunk <= slice_.end) return;
#pragma unroll
      for (int e = 0; e < S::kOwn; ++e)
        if (!exists(base, e)) value[e] = -INFINITY;
    } else {
      const int at = team_.warp * S::kWarpScores + team_.lane * S::kUnit;
      const int left = slice_.end - base - at;
      value[0] = -INFINITY;
#pragma unroll
      for (int i = 0; i < S::kUnit; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(stage + at + i);
        if (i < left) value[0] = fmaxf(value[0], four.x);
        if (i + 1 < left) value[0] = fmaxf(value[0], four.y);
        if (i + 2 < left) value[0] = fmaxf(value[0], four.z);
        if (i + 3 < left) value[0] = fmaxf(value[0], four.w);
      }
      if ((base + at) / S::kUnit == (slice_.visible - 1) / S::kUnit) value[0] = INFINITY;
    }
  }

  __device__ bool exists(int base, int e) const {
    if constexpr (S::kUnit == 1) return base + lane_score(e / 4) + e % 4 < slice_.end;
    return base + team_.warp * S::kWarpScores + team_.lane * S::kUnit < slice_.end;
  }

  __device__ void consume(int chunk) {
    const float* stage = memory_.stages[chunk % S::kStages];
    const int base = slice_.begin + chunk * S::kChunk;
    float value[S::kOwn];
    read(stage, base, value);
    float most = value[0];
    if constexpr (S::kUnit == 1) {
#pragma unroll
      for (int e = 0; e < S::kOwn; ++e) {
        most = fmaxf(most, value[e]);
        float& best = best_[e % S::kGroups];
        best = fmaxf(best, value[e]);
      }
    }
    // After 1, 2, 4, 8, ... chunks; at the first before anything is kept.
    const bool rises = can_rise_ && (chunk & (chunk + 1)) == 0;
    if (chunk == 0) meet_first();
    if (rises && chunk == 0) rise_together();
    // NaN passes; of lanes with nothing else, and all while the floor is -infinity.
    const std::uint32_t mask = most < floor_ ? 0 : above_floor(value, base);
    std::uint32_t& added = memory_.added[chunk % 3];
    keep(stage, base, value[0], mask, added);
    std::uint32_t hint = 0;
    if (rises && chunk != 0) hint = reached_by(best_, wanted_);
    if (threadIdx.x == 0) memory_.added[(chunk + 1) % 3] = 0;  // all have read it a chunk ago
    hint = team_.smallest(hint);                               // the chunk's barrier
    const std::uint32_t came = added;
    if (kept_ + came > S::kRoom) {
      rise_alone();
      keep_in_steps(stage, base, value[0], above_floor(value, base));
    } else {
      kept_ += came;
    }
    floor_ = fmaxf(floor_, next_floor_);
    if (!can_rise_) return;
    if (cluster_ == 0) {
      if (rises && chunk != 0) floor_ = fmaxf(floor_, to_score(hint));
      return;
    }
    if (rises && chunk != 0) tell(hint);
    look();
  }

  __device__ std::uint32_t above_floor(const float (&value)[S::kOwn], int base) const {
    std::uint32_t mask = 0;
#pragma unroll
    for (int e = 0; e < S::kOwn; ++e) mask |= value[e] < floor_ ? 0 : 1u << e;
    if (base + S::kChunk > slice_.end) {
#pragma unroll
      for (int e = 0; e < S::kOwn; ++e) mask &= exists(base, e) ? kAll : ~(1u << e);
    }
    return mask;
  }

  // The entries of the mask, in any order, to where they have room.
  __device__ void keep(const float* stage, int base, float own, std::uint32_t mask,
                       std::uint32_t& added) {
    if constexpr (S::kUnit == 1) {
      if (mask == 0) return;
      std::uint32_t slot = kept_ + atomicAdd(&added, static_cast<std::uint32_t>(__popc(mask)));
      for (; mask != 0; mask &= mask - 1, ++slot) {
        const int e = __ffs(static_cast<int>(mask)) - 1;
        const int at = lane_score(e / 4) + e % 4;
        if (slot >= S::kRoom) return;            // then the chunk is gone through again
        memory_.keys[slot] = to_key(stage[at]);  // a register array has no run-time index
        memory_.places[slot] = base + at;
      }
    } else {
      const std::uint32_t lanes = __ballot_sync(kAll, mask != 0);
      std::uint32_t slot = 0;
      if (team_.lane == 0 && lanes != 0)
        slot = atomicAdd(&added, static_cast<std::uint32_t>(__popc(lanes)));
      slot = kept_ + __shfl_sync(kAll, slot, 0) + __popc(lanes & ((1u << team_.lane) - 1));
      if (mask == 0 || slot >= S::kRoom) return;
      memory_.keys[slot] = to_key(own);
      memory_.places[slot] = (base + team_.warp * S::kWarpScores) / S::kUnit + team_.lane;
    }
  }

  // The same, cutting to k whenever a step of the chunk might not fit. Rare, and right for
  // anything.
  __device__ void keep_in_steps(const float* stage, int base, float own, std::uint32_t mask) {
    for (int step = 0; step < S::kSteps; ++step) {
      if (kept_ + S::kStep > S::kRoom) compact();
      __syncthreads();
      if (threadIdx.x == 0) memory_.added[3] = 0;
      __syncthreads();
      keep(stage, base, own, S::kUnit == 1 ? mask & 15u << (4 * step) : mask, memory_.added[3]);
      __syncthreads();
      kept_ += memory_.added[3];
    }
  }

  // All blocks of the cluster run, and have cleared their hints.
  __device__ void meet_first() {
    if (cluster_ != 0) hopper::cluster_wait();
  }

  // The first floor: all blocks of the row wait for each other, for it is worth most.
  __device__ void rise_together() {
    const std::uint32_t hint = team_.smallest(reached_by(best_, wanted_));
    if (cluster_ == 0) {
      floor_ = to_score(hint);
      return;
    }
    tell(hint);
    hopper::cluster_sync();
    look();
  }

  // A floor that this block's slice gives by itself: where scores rise along a row, much better.
  __device__ void rise_alone() {
    if (!can_rise_) return;
    const std::uint32_t share = (k_ + S::kWarps - 1) / S::kWarps;
    floor_ = fmaxf(floor_, to_score(team_.smallest(reached_by(best_, share))));
  }

  __device__ void tell(std::uint32_t hint) {
    if (threadIdx.x < 1u << cluster_)
      hopper::raise_remote_u32(hopper::remote_address(&memory_.hints[slice_.rank], threadIdx.x),
                               hint);
  }

  // A hint of any age holds: what reaches it was seen. So nobody waits for the newest. Read by an
  // atomic, for other blocks may be raising it.
  __device__ void look() {
    const std::uint32_t hint =
        team_.lane < 1 << cluster_ ? atomicMax(&memory_.hints[team_.lane], 0u) : kAll;
    const std::uint32_t least = __reduce_min_sync(kAll, hint);
    if (least != 0) floor_ = fmaxf(floor_, to_score(least));
  }

  Memory<S>& memory_;
  const Slice& slice_;
  const std::uint32_t k_;
  const int cluster_;  // binary logarithm
  Team<S::kThreads> team_;
  float best_[S::kGroups];  // of the thread's entries so far
  float floor_ = -INFINITY;
  float next_floor_ = -INFINITY;  // from the next chunk on
  std::uint32_t kept_ = 0;
  std::uint32_t wanted_;  // a warp's share of k
  int chunks_;
  bool can_rise_;
};

}  // namespace deepinfer::kernels::topk
