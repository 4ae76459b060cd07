// csrc/kernels/topk/cuda/rank.cuh — ranking keys in shared memory by one block of threads.
// Everything here is a whole number and comes out in index order: no result shows in which order
// threads ran. All functions are called by all threads of the block.
#pragma once
#include <cstdint>

namespace deepinfer::kernels::topk {

constexpr std::uint32_t kAll = 0xFFFFFFFFu;
constexpr std::uint32_t kKeyOfInfinity = 0xFF800000u;
constexpr int kBinBits = 11;
constexpr int kBins = 1 << kBinBits;

// The greater score has the greater key; -0 and +0 have one, NaN has that of -infinity.
__device__ __forceinline__ std::uint32_t to_key(float score) {
  const std::uint32_t bits = __float_as_uint(fmaxf(score, -INFINITY) + 0.0f);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

__device__ __forceinline__ float to_score(std::uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 != 0 ? 0x80000000u : 0xFFFFFFFFu));
}

// Where a selection ends: all keys above `key`, and of those equal to it the first `equal`.
struct Cut {
  std::uint32_t key;
  std::uint32_t equal;
};

// Shared memory of a team.
struct Board {
  std::uint32_t warp[2][32];
  std::uint32_t found[4];
};

struct Sums {
  std::uint32_t before;  // over the warps before this one
  std::uint32_t total;
};

template <int kThreads>
struct Team {
  static constexpr int kWarps = kThreads / 32;
  Board& board;
  std::uint32_t* bins;  // [kBins]
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp = static_cast<int>(threadIdx.x / 32);
  int parity = 0;

  // One barrier; two boards in turn, so that the next call needs none before it writes.
  __device__ std::uint32_t posted(std::uint32_t value, std::uint32_t missing) {
    parity ^= 1;
    if (lane == 0) board.warp[parity][warp] = value;
    __syncthreads();
    return lane < kWarps ? board.warp[parity][lane] : missing;
  }
  // `value` is the same in all lanes of a warp. Fields packed into it are summed each.
  __device__ Sums sums(std::uint32_t value) {
    const std::uint32_t all = posted(value, 0);
    return {__reduce_add_sync(kAll, lane < warp ? all : 0), __reduce_add_sync(kAll, all)};
  }
  __device__ std::uint32_t smallest(std::uint32_t value) {
    return __reduce_min_sync(kAll, posted(__reduce_min_sync(kAll, value), kAll));
  }
  __device__ std::uint32_t largest(std::uint32_t value) {
    return __reduce_max_sync(kAll, posted(__reduce_max_sync(kAll, value), 0));
  }
};

__device__ __forceinline__ std::uint32_t inclusive_sum(std::uint32_t value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAll, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// Narrows [low, high] to the bin of the need-th largest key among those in it; `need` becomes its
// rank within the bin. True if the bin is taken whole.
template <int kThreads>
__device__ bool narrow(Team<kThreads>& team, const std::uint32_t* keys, std::uint32_t count,
                       std::uint32_t& low, std::uint32_t& high, std::uint32_t& need) {
  constexpr int kOwn = kBins / kThreads;
  const int bits = 32 - __clz(static_cast<int>(high - low));
  const int shift = bits > kBinBits ? bits - kBinBits : 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) team.bins[threadIdx.x + j * kThreads] = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const std::uint32_t key = keys[i];
    if (key >= low && key <= high) atomicAdd(&team.bins[(key - low) >> shift], 1u);
  }
  __syncthreads();
  std::uint32_t own[kOwn], sum = 0;  // from the top bin down
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) sum += own[j] = team.bins[top - j];
  const std::uint32_t until = inclusive_sum(sum, team.lane);
  std::uint32_t above =
      team.sums(__shfl_sync(kAll, until, 31)).before + until - sum;  // keys in higher bins
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (above < need && need <= above + own[j]) {
      team.board.found[0] = static_cast<std::uint32_t>(top - j);
      team.board.found[1] = above;
      team.board.found[2] = own[j];
    }
    above += own[j];
  }
  __syncthreads();
  need -= team.board.found[1];
  low += team.board.found[0] << shift;
  high = min(high, low + ((1u << shift) - 1));
  return team.board.found[2] == need;
}

// Where the k largest of `count` keys end; 1 <= k <= count. The keys are visible to the block.
template <int kThreads>
__device__ Cut cut_after(Team<kThreads>& team, const std::uint32_t* keys, std::uint32_t count,
                         std::uint32_t k) {
  if (count == k) return {0, kAll};
  std::uint32_t low = kAll, high = 0, need = k;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    low = min(low, keys[i]);
    high = max(high, keys[i]);
  }
  low = team.smallest(low);
  high = team.largest(high);
  while (low < high) {
    if (narrow(team, keys, count, low, high, need)) return {low, kAll};
  }
  return {low, need};
}

// sink(slot, i) for every entry that the cut takes; slots count up with i. A barrier lies between
// all reads of `bins` before the call and the first sink.
template <int kThreads, typename Sink>
__device__ void take(Team<kThreads>& team, const std::uint32_t* keys, std::uint32_t count, Cut cut,
                     Sink sink) {
  const std::uint32_t part = (count + kThreads - 1) / kThreads * 32;  // of a warp
  const std::uint32_t begin = min(count, team.warp * part);
  const std::uint32_t end = min(count, begin + part);
  const std::uint32_t before_lane = (1u << team.lane) - 1;
  std::uint32_t packed = 0;  // keys above the cut, and from bit 16 on those equal to it
  for (std::uint32_t first = begin; first < end; first += 32) {
    const std::uint32_t i = first + team.lane;
    const std::uint32_t key = i < end ? keys[i] : 0;
    packed += __popc(__ballot_sync(kAll, key > cut.key)) +
              (__popc(__ballot_sync(kAll, i < end && key == cut.key)) << 16);
  }
  packed = team.sums(packed).before;
  std::uint32_t greater = packed & 0xFFFF, equal = packed >> 16;
  for (std::uint32_t first = begin; first < end; first += 32) {
    const std::uint32_t i = first + team.lane;
    const std::uint32_t key = i < end ? keys[i] : 0;
    const bool above = key > cut.key, same = i < end && key == cut.key;
    const std::uint32_t aboves = __ballot_sync(kAll, above), sames = __ballot_sync(kAll, same);
    const std::uint32_t rank = equal + __popc(sames & before_lane);
    const std::uint32_t slot = greater + __popc(aboves & before_lane) + min(rank, cut.equal);
    if (above || (same && rank < cut.equal)) sink(slot, i);
    greater += __popc(aboves);
    equal += __popc(sames);
  }
}

// A score that at least k entries reach, near the k-th largest of the groups' best: of every group
// that reaches it one entry does. There are at least k groups.
template <int kThreads, int kGroups>
__device__ float floor_of(Team<kThreads>& team, const float (&best)[kGroups], std::uint32_t k) {
  std::uint32_t key[kGroups], low = kAll, high = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    key[g] = to_key(best[g]);
    low = min(low, key[g]);
    high = max(high, key[g]);
  }
  low = team.smallest(low);
  high = team.largest(high);
  const std::uint32_t near = min(4096u, (high - low) >> 12);
  while (high - low > near) {
    const std::uint32_t middle = high - (high - low) / 2;
    std::uint32_t reached = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) reached += __syncthreads_count(key[g] >= middle);
    if (reached >= k) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return to_score(low);
}

}  // namespace deepinfer::kernels::topk
