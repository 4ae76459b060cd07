// csrc/kernels/topk/cuda/rank.cuh — ranking (key, place) pairs in shared memory by one block of
// threads. Places differ, so there is one right order: by (key descending, place ascending). The
// entries lie in no order; nothing that is returned shows in which order threads ran. All functions
// are called by all threads of the block.
#pragma once
#include <cstdint>

namespace deepinfer::kernels::topk {

constexpr std::uint32_t kAll = 0xFFFFFFFFu;
constexpr std::uint32_t kKeyOfInfinity = 0xFF800000u;
constexpr int kBinBits = 11;
constexpr int kBins = 1 << kBinBits;
constexpr std::uint32_t kFew = 32;  // so many are ranked by comparing each with each

// The greater score has the greater key; -0 and +0 have one, NaN has that of -infinity.
__device__ __forceinline__ std::uint32_t to_key(float score) {
  const std::uint32_t bits = __float_as_uint(fmaxf(score, -INFINITY) + 0.0f);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

__device__ __forceinline__ float to_score(std::uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 != 0 ? 0x80000000u : 0xFFFFFFFFu));
}

// Entries in shared memory.
struct List {
  std::uint32_t* keys;
  std::uint32_t* places;
  std::uint32_t count;
};

// Where a selection ends: all keys above `key`, and of those equal to it places up to `place`.
struct Cut {
  std::uint32_t key;
  std::uint32_t place;
  __device__ bool takes(std::uint32_t other, std::uint32_t at) const {
    return other > key || (other == key && at <= place);
  }
};

// Shared memory of a team.
struct Board {
  uint2 warp[2][32];
  std::uint32_t found[4];
  std::uint32_t few_keys[kFew];
  std::uint32_t few_places[kFew];
  std::uint32_t few;
};

template <int kThreads>
struct Team {
  static constexpr int kWarps = kThreads / 32;
  Board& board;
  std::uint32_t* bins;  // [kBins]
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp = __shfl_sync(kAll, static_cast<int>(threadIdx.x / 32), 0);  // known to be one a warp
  int parity = 0;

  // One barrier; two boards in turn, so that the next call needs none before it writes.
  __device__ uint2 posted(std::uint32_t x, std::uint32_t y, uint2 missing) {
    parity ^= 1;
    if (lane == 0) board.warp[parity][warp] = make_uint2(x, y);
    __syncthreads();
    return lane < kWarps ? board.warp[parity][lane] : missing;
  }
  // The sum over the warps before this one. `value` is the same in all lanes of a warp.
  __device__ std::uint32_t sum_before(std::uint32_t value) {
    const uint2 all = posted(value, 0, make_uint2(0, 0));
    return __reduce_add_sync(kAll, lane < warp ? all.x : 0);
  }
  __device__ std::uint32_t smallest(std::uint32_t value) {
    return __reduce_min_sync(kAll, posted(value, 0, make_uint2(kAll, 0)).x);
  }
  __device__ void range(std::uint32_t& low, std::uint32_t& high) {
    const uint2 all =
        posted(__reduce_min_sync(kAll, low), __reduce_max_sync(kAll, high), make_uint2(kAll, 0));
    low = __reduce_min_sync(kAll, all.x);
    high = __reduce_max_sync(kAll, all.y);
  }
  __device__ void clear_bins() {
#pragma unroll
    for (int j = 0; j < kBins / kThreads; ++j) bins[threadIdx.x + j * kThreads] = 0;
    __syncthreads();
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

// The values of the entries that still matter, [low, high], and the rank that is looked for.
struct Search {
  std::uint32_t low, high, need, members;
};

// Narrows the search to one of up to 2048 bins of it. value(i, v): whether entry i takes part.
template <int kThreads, typename Value>
__device__ void narrow(Team<kThreads>& team, std::uint32_t count, Search& search, Value value) {
  constexpr int kOwn = kBins / kThreads;
  const int bits = 32 - __clz(static_cast<int>(search.high - search.low));
  const int shift = bits > kBinBits ? bits - kBinBits : 0;
  team.clear_bins();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    std::uint32_t v;
    if (value(i, v) && v >= search.low && v <= search.high)
      atomicAdd(&team.bins[(v - search.low) >> shift], 1u);
  }
  __syncthreads();
  std::uint32_t own[kOwn], sum = 0;  // from the top bin down
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) sum += own[j] = team.bins[top - j];
  const std::uint32_t until = inclusive_sum(sum, team.lane);
  std::uint32_t above = team.sum_before(__shfl_sync(kAll, until, 31)) + until - sum;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (above < search.need && search.need <= above + own[j]) {
      team.board.found[0] = static_cast<std::uint32_t>(top - j);
      team.board.found[1] = above;
      team.board.found[2] = own[j];
      team.board.few = 0;
    }
    above += own[j];
  }
  __syncthreads();
  search.low += team.board.found[0] << shift;
  search.high = min(search.high, search.low + ((1u << shift) - 1));
  search.need -= team.board.found[1];
  search.members = team.board.found[2];
}

// The entry of rank `need` among at most kFew members.
template <int kThreads, typename Member>
__device__ Cut pick(Team<kThreads>& team, const List& list, std::uint32_t need, Member member) {
  Board& board = team.board;
  for (std::uint32_t i = threadIdx.x; i < list.count; i += kThreads) {
    if (!member(i)) continue;
    const std::uint32_t slot = atomicAdd(&board.few, 1u);
    board.few_keys[slot] = list.keys[i];
    board.few_places[slot] = list.places[i];
  }
  __syncthreads();
  if (threadIdx.x < board.few) {
    const std::uint32_t key = board.few_keys[threadIdx.x], place = board.few_places[threadIdx.x];
    std::uint32_t rank = 1;
    for (std::uint32_t i = 0; i < board.few; ++i) {
      const std::uint32_t other = board.few_keys[i];
      rank += other > key || (other == key && board.few_places[i] < place) ? 1 : 0;
    }
    if (rank == need) {
      board.found[0] = key;
      board.found[1] = place;
    }
  }
  __syncthreads();
  return {board.found[0], board.found[1]};
}

// Where the k best end; 1 <= k <= list.count. The list is visible to the block.
template <int kThreads>
__device__ Cut cut_after(Team<kThreads>& team, const List& list, std::uint32_t k) {
  if (list.count == k) return {0, kAll};
  Search keys{kAll, 0, k, list.count};
  for (std::uint32_t i = threadIdx.x; i < list.count; i += kThreads) {
    keys.low = min(keys.low, list.keys[i]);
    keys.high = max(keys.high, list.keys[i]);
  }
  team.range(keys.low, keys.high);
  while (keys.low < keys.high) {
    narrow(team, list.count, keys, [&](std::uint32_t i, std::uint32_t& v) {
      v = list.keys[i];
      return true;
    });
    if (keys.members == keys.need) return {keys.low, kAll};
    if (keys.members <= kFew)
      return pick(team, list, keys.need, [&](std::uint32_t i) {
        return list.keys[i] >= keys.low && list.keys[i] <= keys.high;
      });
  }
  Search places{0, kAll, keys.need, keys.members};  // of equal keys: the lower, the better
  while (true) {
    narrow(team, list.count, places, [&](std::uint32_t i, std::uint32_t& v) {
      v = ~list.places[i];
      return list.keys[i] == keys.low;
    });
    if (places.members == places.need) return {keys.low, ~places.low};
    if (places.members <= kFew)
      return pick(team, list, places.need, [&](std::uint32_t i) {
        const std::uint32_t v = ~list.places[i];
        return list.keys[i] == keys.low && v >= places.low && v <= places.high;
      });
  }
}

// sink(slot, place) for the `k` entries that the cut takes, slots counting up with the place.
// `limit` is above every place; `sorted` holds k words.
template <int kThreads, typename Sink>
__device__ void emit(Team<kThreads>& team, const List& list, Cut cut, std::uint32_t k,
                     std::uint32_t limit, std::uint32_t* sorted, Sink sink) {
  constexpr int kOwn = kBins / kThreads;
  const int bits = 32 - __clz(static_cast<int>(limit - 1));
  const int shift = bits > kBinBits ? bits - kBinBits : 0;
  team.clear_bins();
  for (std::uint32_t i = threadIdx.x; i < list.count; i += kThreads) {
    const std::uint32_t place = list.places[i];
    if (cut.takes(list.keys[i], place)) atomicAdd(&team.bins[place >> shift], 1u);
  }
  __syncthreads();
  std::uint32_t own[kOwn], sum = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) sum += own[j] = team.bins[threadIdx.x * kOwn + j];
  const std::uint32_t until = inclusive_sum(sum, team.lane);
  std::uint32_t begin = team.sum_before(__shfl_sync(kAll, until, 31)) + until - sum;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    team.bins[threadIdx.x * kOwn + j] = begin;
    begin += own[j];
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < list.count; i += kThreads) {
    const std::uint32_t place = list.places[i];
    if (cut.takes(list.keys[i], place)) sorted[atomicAdd(&team.bins[place >> shift], 1u)] = place;
  }
  __syncthreads();  // a bin now says where the next one begins
  for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) {
    const std::uint32_t place = sorted[i], bin = place >> shift;
    const std::uint32_t from = bin == 0 ? 0 : team.bins[bin - 1], to = team.bins[bin];
    std::uint32_t slot = from;
    for (std::uint32_t j = from; j < to; ++j) slot += sorted[j] < place ? 1 : 0;
    sink(slot, place);
  }
}

// The largest key, but for the search's coarseness, that `wanted` of the warp's groups reach.
template <int kGroups>
__device__ std::uint32_t reached_by(const float (&best)[kGroups], std::uint32_t wanted) {
  std::uint32_t key[kGroups], low = kAll, high = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    key[g] = to_key(best[g]);
    low = min(low, key[g]);
    high = max(high, key[g]);
  }
  low = __reduce_min_sync(kAll, low);
  high = __reduce_max_sync(kAll, high);
  const std::uint32_t near = (high - low) >> 9;
  while (high - low > near) {
    const std::uint32_t middle = high - (high - low) / 2;
    std::uint32_t reached = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) reached += __popc(__ballot_sync(kAll, key[g] >= middle));
    if (reached >= wanted) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace deepinfer::kernels::topk
