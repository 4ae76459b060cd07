// csrc/kernels/topk/cuda/topk.cu — see topk.h; any device from sm_90 on.
// The blocks of a cluster take a slice of a row each (stream.cuh). At the end the first block
// gathers what all have kept, cuts it to k and sorts it by place (rank.cuh). Which entries are kept
// on the way depends on the plan and on which warp comes first; which are chosen does not.
// docs/kernels/topk.md has the measurements behind the shapes.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "kernels/hopper/cluster.cuh"
#include "kernels/topk/cuda/rank.cuh"
#include "kernels/topk/cuda/stream.cuh"
#include "kernels/topk/cuda/topk.h"

namespace {

namespace hopper = deepinfer::kernels::hopper;
using namespace deepinfer::kernels::topk;  // NOLINT: the stream and the ranking of this folder

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

// What the other blocks have kept, behind what the first one has.
template <typename S>
__device__ List gather(Memory<S>& memory, List list, int cluster) {
  constexpr int kBatch = 4;  // remote loads under way at once
  for (int rank = 1; rank < cluster; ++rank) {
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
        list.keys[list.count + i] = key[b];
        list.places[list.count + i] = place[b];
      }
    }
    list.count += count;
  }
  return list;
}

template <typename S>
__device__ void finish(Memory<S>& memory, Team<S::kThreads>& team, const Task& task,
                       const Slice& slice, const List& list) {
  std::int32_t* out = task.out + static_cast<std::int64_t>(slice.row) * task.k;
  const auto k = static_cast<std::uint32_t>(task.k);
  const Cut cut = cut_after(team, list, k);
  auto* sorted = reinterpret_cast<std::uint32_t*>(memory.stages);
  emit(team, list, cut, k, static_cast<std::uint32_t>(slice.visible), sorted,
       [&](std::uint32_t slot, std::uint32_t place) {
         out[slot] = place_of(task, slice.row, static_cast<int>(place));
         if (S::kUnit != 1 && slot + 1 == k)
           task.entries[slice.row] = entries_of(task.k, static_cast<int>(place), slice.visible);
       });
  if (threadIdx.x == 0) task.count[slice.row] = task.k;
}

template <typename S, int kBlocksPerSm>
__global__ void __launch_bounds__(S::kThreads, kBlocksPerSm) best_entries(const Task task) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& memory = *reinterpret_cast<Memory<S>*>(raw);
  const Slice slice(task);
  const int entries = (slice.visible + S::kUnit - 1) / S::kUnit;
  if (entries <= task.k) {
    if (slice.rank == 0) take_all<S>(task, slice, entries);
    return;
  }
  Stream<S> stream(memory, task, slice);
  List list = stream.run();
  if (task.cluster == 0) {
    __syncthreads();
    finish<S>(memory, stream.team(), task, slice, list);
    return;
  }
  if (list.count > S::kRoom >> task.cluster) {
    stream.compact();
    list = stream.list();
  }
  if (threadIdx.x == 0) memory.kept = list.count;
  hopper::cluster_sync();
  if (slice.rank == 0) list = gather(memory, list, 1 << task.cluster);
  hopper::cluster_sync();  // no block leaves while its memory is read
  if (slice.rank == 0) finish<S>(memory, stream.team(), task, slice, list);
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
  static_assert(sizeof(Memory<S>) <= 228 * 1024 / kBlocksPerSm - 1024);
  task.cluster = 0;
  while ((2 << task.cluster) <= std::min(cluster, S::kRoom / task.k)) ++task.cluster;
  if (const cudaError_t error = allow_memory<S, kBlocksPerSm>(); error != cudaSuccess) return error;
  const unsigned blocks = 1u << task.cluster;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows) * blocks);
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = sizeof(Memory<S>);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = blocks > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, best_entries<S, kBlocksPerSm>, task);
}

struct Plan {
  int shape;
  int cluster;
};

// One large block an SM while the rows, or their parts of a chunk at least, do not outnumber the
// SMs; beyond that two smaller ones an SM and no cluster. Measured: docs/kernels/topk.md.
Plan chosen(std::int64_t rows, std::int64_t columns, std::int64_t plan) {
  if (plan != 0) return {static_cast<int>(plan / 100), static_cast<int>(plan % 100)};
  constexpr std::int64_t kSms = 132, kPart = 16384;
  if (rows > kSms) return {2, 1};
  int cluster = 1;
  while (cluster < kCluster && rows * cluster * 2 <= kSms && columns / (cluster * 2) >= kPart)
    cluster *= 2;
  return {1, cluster};
}

int select(const Task& task, std::int64_t rows, Plan plan, void* stream) {
  const int cluster = plan.cluster;
  const bool small = task.k <= kFewest;
  if (plan.shape == 1 && small)
    return launch<Shape<1024, 4, 2, 8192, kFewest, 1>, 1>(task, rows, cluster, stream);
  if (plan.shape == 2 && small)
    return launch<Shape<512, 4, 2, 4096, kFewest, 1>, 2>(task, rows, cluster, stream);
  if (plan.shape == 3 && small)
    return launch<Shape<256, 4, 2, 4096, kFewest, 1>, 3>(task, rows, cluster, stream);
  if (plan.shape == 4 && small)
    return launch<Shape<256, 2, 3, 2560, kFewest, 1>, 4>(task, rows, cluster, stream);
  if (plan.shape == 1)
    return launch<Shape<1024, 2, 2, 12288, kMost, 1>, 1>(task, rows, cluster, stream);
  if (plan.shape == 2)
    return launch<Shape<512, 2, 2, 6144, kMost, 1>, 2>(task, rows, cluster, stream);
  return cudaErrorInvalidValue;
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

bool allowed(const Task& task, std::int64_t rows, std::int64_t columns, std::int64_t k, Plan plan,
             std::int64_t multiple) {
  if (rows < 0 || rows > (1 << 28) || columns < 0 || columns >= (1 << 30)) return false;
  if (columns % multiple != 0 || k < 1 || k > kMost) return false;
  const int cluster = plan.cluster;
  if (cluster < 1 || cluster > kCluster || (cluster & (cluster - 1)) != 0) return false;
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
  const Task task{scores,
                  visible,
                  blocks,
                  indices,
                  count,
                  nullptr,
                  static_cast<int>(columns),
                  static_cast<int>(k),
                  0};
  const Plan use = chosen(rows, columns, plan);
  if (!allowed(task, rows, columns, k, use, blocks == nullptr ? 4 : kBlockSize))
    return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  return select(task, rows, use, stream);
}

int deepinfer_cuda_topk_candidate_blocks(const float* scores, const std::int32_t* visible,
                                         std::int32_t* blocks, std::int32_t* count,
                                         std::int32_t* entries, std::int64_t rows,
                                         std::int64_t columns, std::int64_t most, std::int64_t plan,
                                         void* stream) {
  const Task task{scores,
                  visible,
                  nullptr,
                  blocks,
                  count,
                  entries,
                  static_cast<int>(columns),
                  static_cast<int>(most),
                  0};
  const Plan use = chosen(rows, columns, plan);
  if (!allowed(task, rows, columns, most, use, kBlockSize)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  if (entries == nullptr) return cudaErrorInvalidValue;
  if (use.shape == 1)
    return launch<Shape<1024, 2, 3, 12288, kMost, kBlockSize>, 1>(task, rows, use.cluster, stream);
  if (use.shape == 2)
    return launch<Shape<512, 2, 3, 6144, kMost, kBlockSize>, 2>(task, rows, use.cluster, stream);
  return cudaErrorInvalidValue;
}

}  // extern "C"
