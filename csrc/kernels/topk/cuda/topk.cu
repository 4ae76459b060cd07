// csrc/kernels/topk/cuda/topk.cu — see topk.h; any device from sm_90 on.
// A row is read once. The blocks of a cluster take a slice each and stream it through shared memory
// in chunks; of a chunk only what can still be among the k best is kept, in index order: a floor
// rises with what was seen. When the room is full, the kept are cut to k. At the end the first block
// gathers what all have kept and cuts once more. Which entries are kept on the way depends on the
// plan; which are chosen does not. docs/kernels/topk.md has the measurements behind the shapes.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "kernels/hopper/cluster.cuh"
#include "kernels/hopper/cp_async.cuh"
#include "kernels/topk/cuda/rank.cuh"
#include "kernels/topk/cuda/topk.h"

namespace {

namespace hopper = deepinfer::kernels::hopper;
using namespace deepinfer::kernels::topk;  // NOLINT: the ranking is the other half of this file

constexpr int kBlockSize = 8;  // entries of a candidate block
constexpr int kFewest = 512;   // what the smallest class of k holds

// kBest: the k that there is room for. kUnit: scores of an entry, 1 or kBlockSize.
template <int kThreads_, int kLoads_, int kStages_, int kBest_, int kUnit_>
struct Shape {
  static constexpr int kThreads = kThreads_, kLoads = kLoads_, kStages = kStages_;
  static constexpr int kBest = kBest_, kUnit = kUnit_;
  static constexpr int kWarpScores = 128 * kLoads;  // contiguous scores of a warp in a chunk
  static constexpr int kChunk = kThreads / 32 * kWarpScores;
  static constexpr int kOwn = 4 * kLoads / kUnit;  // entries of a thread in a chunk
  static constexpr int kEntries = kChunk / kUnit;
  static constexpr int kRoom = kBest + kChunk;
  static constexpr int kGroups = std::max(1, 2 * kBest / kThreads);
  static constexpr int kBinWords = std::max(kBins, 2 * kBest);
  static constexpr int kMeeting = kStages * kChunk / 2;  // entries that the stages hold in the end
  static_assert(kLoads <= 4 && kOwn >= 1);
  static_assert(kUnit != 1 || kGroups <= kOwn);
  static_assert(kRoom < 65536 && kMeeting < 65536);  // `take` counts in 16 bits
};

template <typename S>
struct Memory {
  float stages[S::kStages][S::kChunk];  // in the end keys and places of all blocks
  std::uint32_t keys[S::kRoom];
  std::uint32_t places[S::kRoom];
  std::uint32_t bins[S::kBinWords];
  Board board;
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
  std::int32_t cluster;
};

// The row of this block and its slice of the scores.
struct Slice {
  const float* scores;
  int row, visible, begin, end;

  __device__ Slice(const Task& task, int rank) {
    row = static_cast<int>(blockIdx.x / task.cluster);
    scores = task.scores + static_cast<std::int64_t>(row) * task.columns;
    visible = min(max(task.visible[row], 0), task.columns);
    const int part =
        (visible + task.cluster * kBlockSize - 1) / (task.cluster * kBlockSize) * kBlockSize;
    begin = min(visible, rank * part);
    end = min(visible, begin + part);
  }
};

__device__ int place_of(const Task& task, int row, int entry) {
  if (task.blocks == nullptr) return entry;
  const std::int64_t first = static_cast<std::int64_t>(row) * (task.columns / kBlockSize);
  return task.blocks[first + entry / kBlockSize] * kBlockSize + entry % kBlockSize;
}

// What is visible of the chosen blocks: all are full but that of the newest entry.
__device__ int entries_of(int chosen, int last, int visible) {
  const int newest = (visible - 1) / kBlockSize;
  return last == newest ? (chosen - 1) * kBlockSize + visible - newest * kBlockSize
                        : chosen * kBlockSize;
}

// A row with no more than k entries: all of them.
template <typename S>
__device__ void take_all(const Task& task, const Slice& slice, int entries) {
  std::int32_t* out = task.out + static_cast<std::int64_t>(slice.row) * task.k;
  for (int i = threadIdx.x; i < task.k; i += S::kThreads)
    out[i] = i < entries ? place_of(task, slice.row, i) : -1;
  if (threadIdx.x != 0) return;
  task.count[slice.row] = entries;
  if (S::kUnit != 1) task.entries[slice.row] = slice.visible;
}

template <typename S>
class Stream {
 public:
  __device__ Stream(Memory<S>& memory, const Task& task, const Slice& slice)
      : memory_(memory), slice_(slice), k_(task.k), team_{memory.board, memory.bins} {
#pragma unroll
    for (float& best : best_) best = -INFINITY;
    const int length = slice.end - slice.begin;
    // Else fewer than k groups see an entry, and the floor would stay at -infinity.
    can_rise_ = S::kUnit == 1 && static_cast<std::int64_t>(min(length, S::kChunk)) *
                                         (S::kGroups * S::kThreads) >
                                     static_cast<std::int64_t>(S::kChunk) * k_;
  }

  // Keeps of the slice what may be among its k best. Returns how many entries that is.
  __device__ std::uint32_t run() {
    const int chunks = (slice_.end - slice_.begin + S::kChunk - 1) / S::kChunk;
#pragma unroll
    for (int c = 0; c < S::kStages - 1; ++c) fetch(c);
    for (int c = 0; c < chunks; ++c) {
      hopper::cp_async_wait<S::kStages - 2>();
      __syncwarp();  // a warp reads what its lanes have copied, and has read the stage before
      fetch(c + S::kStages - 1);
      consume(c);
    }
    __syncthreads();
    return kept_;
  }

  // Cuts what is kept to the k best; what comes later loses against equals.
  __device__ void compact() {
    __syncthreads();
    const Cut cut = cut_after(team_, memory_.keys, kept_, k_);
    take(team_, memory_.keys, kept_, cut, [&](std::uint32_t slot, std::uint32_t i) {
      memory_.bins[slot] = memory_.keys[i];
      memory_.bins[S::kBest + slot] = memory_.places[i];
    });
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < k_; i += S::kThreads) {
      memory_.keys[i] = memory_.bins[i];
      memory_.places[i] = memory_.bins[S::kBest + i];
    }
    __syncthreads();
    kept_ = k_;
    const std::uint32_t next = cut.equal == kAll ? cut.key : cut.key + 1;
    floor_ = fmaxf(floor_, next > kKeyOfInfinity ? INFINITY : to_score(next));
  }

  __device__ Team<S::kThreads>& team() { return team_; }

 private:
  __device__ int lane_score(int load) const {  // of a chunk
    return team_.warp * S::kWarpScores + load * 128 + team_.lane * 4;
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

  // The thread's entries of a chunk, and which of them exist.
  __device__ std::uint32_t read(const float* stage, int base, float (&value)[S::kOwn]) const {
    if constexpr (S::kUnit == 1) {
      std::uint32_t exist = (1ull << S::kOwn) - 1;
#pragma unroll
      for (int j = 0; j < S::kLoads; ++j) {
        const float4 four = *reinterpret_cast<const float4*>(stage + lane_score(j));
        value[4 * j] = four.x, value[4 * j + 1] = four.y;
        value[4 * j + 2] = four.z, value[4 * j + 3] = four.w;
      }
      if (base + S::kChunk > slice_.end) {
#pragma unroll
        for (int e = 0; e < S::kOwn; ++e) {
          if (base + lane_score(e / 4) + e % 4 < slice_.end) continue;
          value[e] = -INFINITY;
          exist &= ~(1u << e);
        }
      }
      return exist;
    } else {
      static_assert(S::kOwn == 1);
      const int at = team_.warp * S::kWarpScores + team_.lane * S::kUnit;
      const int left = slice_.end - base - at;
      value[0] = -INFINITY;
      for (int i = 0; i < S::kUnit; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(stage + at + i);
        if (i < left) value[0] = fmaxf(value[0], four.x);
        if (i + 1 < left) value[0] = fmaxf(value[0], four.y);
        if (i + 2 < left) value[0] = fmaxf(value[0], four.z);
        if (i + 3 < left) value[0] = fmaxf(value[0], four.w);
      }
      if ((base + at) / S::kUnit == (slice_.visible - 1) / S::kUnit) value[0] = INFINITY;
      return left > 0 ? 1 : 0;
    }
  }

  __device__ void consume(int chunk) {
    const float* stage = memory_.stages[chunk % S::kStages];
    const int base = slice_.begin + chunk * S::kChunk;
    float value[S::kOwn];
    const std::uint32_t exist = read(stage, base, value);
    bool risen = !can_rise_;
    if constexpr (S::kUnit == 1) {
#pragma unroll
      for (int e = 0; e < S::kOwn; ++e) {
        float& best = best_[e * S::kGroups / S::kOwn];
        best = fmaxf(best, value[e]);
      }
      if (!risen && (chunk & (chunk + 1)) == 0) {
        rise();
        risen = true;
      }
    }
    std::uint32_t mask, packed, until;
    Sums sums;
    while (true) {
      mask = 0;
#pragma unroll
      for (int e = 0; e < S::kOwn; ++e) mask |= value[e] < floor_ ? 0 : 1u << e;  // NaN stays
      mask &= exist;
      packed = 0;  // how many of each load, 8 bits each: a warp has at most 128
#pragma unroll
      for (int j = 0; j < (S::kOwn + 3) / 4; ++j)
        packed |= static_cast<std::uint32_t>(__popc(mask >> (4 * j) & 15)) << (8 * j);
      until = inclusive_sum(packed, team_.lane);
      sums = team_.sums(fields(__shfl_sync(kAll, until, 31)));
      if (S::kUnit == 1 && !risen && sums.total > S::kEntries / 2) {
        rise();
        risen = true;
      } else if (kept_ + sums.total > S::kRoom) {
        compact();
      } else {
        break;
      }
    }
    keep(stage, base, value, mask, until - packed, __shfl_sync(kAll, until, 31),
         kept_ + sums.before);
    kept_ += sums.total;
  }

  __device__ static std::uint32_t fields(std::uint32_t packed) {
    return (packed & 0xFF) + (packed >> 8 & 0xFF) + (packed >> 16 & 0xFF) + (packed >> 24);
  }

  // Entries of the mask behind those kept, in index order: by load, lane, place in the load.
  __device__ void keep(const float* stage, int base, const float (&value)[S::kOwn],
                       std::uint32_t mask, std::uint32_t before_lane, std::uint32_t of_warp,
                       std::uint32_t slot) {
    if constexpr (S::kUnit != 1) {
      if (mask == 0) return;
      memory_.keys[slot + before_lane] = to_key(value[0]);
      memory_.places[slot + before_lane] =
          (base + team_.warp * S::kWarpScores) / S::kUnit + team_.lane;
    } else {
#pragma unroll
      for (int j = 0; j < S::kLoads; ++j) {
        std::uint32_t to = slot + (before_lane >> (8 * j) & 0xFF);
        for (std::uint32_t left = mask >> (4 * j) & 15; left != 0; left &= left - 1) {
          const int at = lane_score(j) + __ffs(static_cast<int>(left)) - 1;
          memory_.keys[to] = to_key(stage[at]);  // a register array has no run-time index
          memory_.places[to++] = base + at;
        }
        slot += of_warp >> (8 * j) & 0xFF;
      }
    }
  }

  __device__ void rise() { floor_ = fmaxf(floor_, floor_of(team_, best_, k_)); }

  Memory<S>& memory_;
  const Slice& slice_;
  const std::uint32_t k_;
  Team<S::kThreads> team_;
  float best_[S::kGroups];  // of the thread's entries so far
  float floor_ = -INFINITY;
  std::uint32_t kept_ = 0;
  bool can_rise_;
};

// The kept of all blocks, in order, into the first block's stages.
template <typename S>
__device__ std::uint32_t gather(Memory<S>& memory, std::uint32_t* keys, std::uint32_t* places,
                                int cluster) {
  constexpr int kBatch = 4;  // remote loads under way at once
  std::uint32_t total = 0;
  for (int rank = 0; rank < cluster; ++rank) {
    const std::uint32_t count = hopper::load_remote_u32(hopper::remote_address(&memory.kept, rank));
    const std::uint32_t from_keys = hopper::remote_address(memory.keys, rank);
    const std::uint32_t from_places = hopper::remote_address(memory.places, rank);
    for (std::uint32_t first = threadIdx.x; first < count; first += kBatch * S::kThreads) {
      std::uint32_t key[kBatch], place[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const std::uint32_t i = first + b * S::kThreads;
        if (i >= count) break;
        key[b] = hopper::load_remote_u32(from_keys + 4 * i);
        place[b] = hopper::load_remote_u32(from_places + 4 * i);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const std::uint32_t i = first + b * S::kThreads;
        if (i >= count) break;
        keys[total + i] = key[b];
        places[total + i] = place[b];
      }
    }
    total += count;
  }
  return total;
}

template <typename S>
__device__ void finish(Team<S::kThreads>& team, const Task& task, const Slice& slice,
                       const std::uint32_t* keys, const std::uint32_t* places,
                       std::uint32_t count) {
  std::int32_t* out = task.out + static_cast<std::int64_t>(slice.row) * task.k;
  const Cut cut = cut_after(team, keys, count, static_cast<std::uint32_t>(task.k));
  take(team, keys, count, cut, [&](std::uint32_t slot, std::uint32_t i) {
    const int place = static_cast<int>(places[i]);
    out[slot] = place_of(task, slice.row, place);
    if (S::kUnit != 1 && slot + 1 == static_cast<std::uint32_t>(task.k))
      task.entries[slice.row] = entries_of(task.k, place, slice.visible);
  });
  if (threadIdx.x == 0) task.count[slice.row] = task.k;
}

template <typename S, int kBlocksPerSm>
__global__ void __launch_bounds__(S::kThreads, kBlocksPerSm) best_entries(const Task task) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& memory = *reinterpret_cast<Memory<S>*>(raw);
  const int rank = task.cluster == 1 ? 0 : static_cast<int>(hopper::cluster_rank());
  const Slice slice(task, rank);
  const int entries = (slice.visible + S::kUnit - 1) / S::kUnit;
  if (entries <= task.k) {
    if (rank == 0) take_all<S>(task, slice, entries);
    return;
  }
  Stream<S> stream(memory, task, slice);
  std::uint32_t kept = stream.run();
  if (task.cluster == 1) {
    finish<S>(stream.team(), task, slice, memory.keys, memory.places, kept);
    return;
  }
  if (kept > S::kMeeting / task.cluster) {
    stream.compact();
    kept = task.k;
  }
  if (threadIdx.x == 0) memory.kept = kept;
  hopper::cluster_sync();
  auto* keys = reinterpret_cast<std::uint32_t*>(memory.stages);
  std::uint32_t* places = keys + S::kMeeting;
  if (rank == 0) kept = gather(memory, keys, places, task.cluster);
  hopper::cluster_sync();  // no block leaves while its memory is read
  if (rank == 0) finish<S>(stream.team(), task, slice, keys, places, kept);
}

// More shared memory than a kernel gets unasked, once per device; asking twice does no harm.
template <typename S, int kBlocksPerSm>
cudaError_t allow_memory() {
  static std::atomic<std::uint64_t> allowed{0};
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(best_entries<S, kBlocksPerSm>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(sizeof(Memory<S>)));
  if (error == cudaSuccess) allowed.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

template <typename S, int kBlocksPerSm>
int launch(Task task, std::int64_t rows, int cluster, void* stream) {
  static_assert(sizeof(Memory<S>) <= 227 * 1024 / kBlocksPerSm - (kBlocksPerSm - 1) * 1024);
  task.cluster = std::min(cluster, S::kMeeting / task.k);
  while ((task.cluster & (task.cluster - 1)) != 0) --task.cluster;
  if (const cudaError_t error = allow_memory<S, kBlocksPerSm>(); error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(task.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * task.cluster));
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = sizeof(Memory<S>);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = task.cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, best_entries<S, kBlocksPerSm>, task);
}

struct Plan {
  int shape;
  int cluster;
};

// As many blocks as fit the device at once, and slices that are not too short.
Plan chosen(std::int64_t rows, std::int64_t columns, std::int64_t plan) {
  if (plan != 0) return {static_cast<int>(plan / 100), static_cast<int>(plan % 100)};
  constexpr std::int64_t kBlocks = 264;  // two an SM
  int cluster = 1;
  while (cluster < 8 && rows * cluster * 2 <= kBlocks && columns / (cluster * 2) >= 4096)
    cluster *= 2;
  return {2, cluster};
}

template <int kBest>
int select(const Task& task, std::int64_t rows, Plan plan, void* stream) {
  switch (plan.shape) {
    case 1:
      return launch<Shape<1024, 2, 4, kBest, 1>, 1>(task, rows, plan.cluster, stream);
    case 2:
      return launch<Shape<512, 2, 3, kBest, 1>, 2>(task, rows, plan.cluster, stream);
    case 3:
      if constexpr (kBest == kFewest)
        return launch<Shape<512, 1, 4, kBest, 1>, 3>(task, rows, plan.cluster, stream);
      return cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

bool allowed(const Task& task, std::int64_t rows, std::int64_t columns, std::int64_t k, Plan plan,
             std::int64_t multiple) {
  if (rows < 0 || rows > (1 << 28) || columns < 0 || columns >= (1 << 30)) return false;
  if (columns % multiple != 0 || k < 1 || k > 4 * kFewest) return false;
  const int cluster = plan.cluster;
  if (cluster < 1 || cluster > 8 || (cluster & (cluster - 1)) != 0) return false;
  if (rows == 0) return true;
  if (task.scores == nullptr && columns != 0) return false;
  if (task.visible == nullptr || task.out == nullptr || task.count == nullptr) return false;
  return aligned(task.scores) && aligned(task.blocks) && aligned(task.out);
}

}  // namespace

extern "C" {

int deepinfer_cuda_topk_select(const float* scores, const std::int32_t* visible,
                               const std::int32_t* blocks, std::int32_t* indices,
                               std::int32_t* count, std::int64_t rows, std::int64_t columns,
                               std::int64_t k, std::int64_t plan, void* stream) {
  const Task task{scores, visible, blocks, indices, count, nullptr, static_cast<int>(columns),
                  static_cast<int>(k), 1};
  const Plan use = chosen(rows, columns, plan);
  if (!allowed(task, rows, columns, k, use, blocks == nullptr ? 4 : kBlockSize))
    return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (k <= kFewest) return select<kFewest>(task, rows, use, stream);
  if (k <= 2 * kFewest) return select<2 * kFewest>(task, rows, use, stream);
  return select<4 * kFewest>(task, rows, use, stream);
}

int deepinfer_cuda_topk_candidate_blocks(const float* scores, const std::int32_t* visible,
                                         std::int32_t* blocks, std::int32_t* count,
                                         std::int32_t* entries, std::int64_t rows,
                                         std::int64_t columns, std::int64_t most, std::int64_t plan,
                                         void* stream) {
  const Task task{scores, visible, nullptr, blocks, count, entries, static_cast<int>(columns),
                  static_cast<int>(most), 1};
  const Plan use = chosen(rows, columns, plan);
  if (!allowed(task, rows, columns, most, use, kBlockSize)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (entries == nullptr) return cudaErrorInvalidValue;
  constexpr int kMost = 4 * kFewest;
  if (use.shape == 1)
    return launch<Shape<1024, 2, 4, kMost, kBlockSize>, 1>(task, rows, use.cluster, stream);
  if (use.shape == 2)
    return launch<Shape<512, 2, 3, kMost, kBlockSize>, 2>(task, rows, use.cluster, stream);
  return cudaErrorInvalidValue;
}

}  // extern "C"
