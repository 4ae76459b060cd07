// csrc/kernels/indexer/cuda/indexer.cu — see indexer.h; any device from sm_89 on, with its own
// matrix instruction on sm_90a. A block of four warps scores a chunk of places, 64 at a time, for
// one query row or for neighbouring rows of one sequence; several blocks share a multiprocessor, so
// that the copies, the matrix unit and the fp32 unit of different blocks work at the same time.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>

#include "kernels/indexer/cuda/indexer.h"
#include "kernels/indexer/cuda/keys.cuh"
#include "kernels/indexer/cuda/query.cuh"

namespace deepinfer::kernels::indexer {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksPerSm = 4;
constexpr int kPlaces = kWarps * kTileKeys;  // of a tile of the block
constexpr int kMaxChunk = 4096;
constexpr int kMaxCandidateChunk = 2048;
constexpr int kMinChunk = 256;
constexpr int kMaxRecords = kMaxChunk / kTileKeys;
static_assert(kMaxRecords >= kMaxCandidateChunk / kBlockKeys);
constexpr int kMaxTogether = 8;
constexpr int kMaxDevices = 64;

struct Problem {
  const std::uint8_t* query;
  const std::uint8_t* query_scale;
  const void* weights;
  const std::int32_t* block_table;
  const std::int32_t* sequence;
  const std::int32_t* visible;
  const std::int32_t* candidates;  // null: dense
  float* scores;
  Pages pages;
  int rows;
  int sequences;
  int table_width;
  int places;  // of an output row
  int chunk;   // places of a block
  int together;
  bool weights_are_bf16;
};

// Followed by kQueryBytes of staged codes for each row.
struct Shared {
  Ring rings[kWarps];
  float weights[kMaxTogether][kHeads];
  int visible[kMaxTogether];
  Records records[kMaxRecords];
  int entries[kMaxRecords];  // the first entry of each candidate block; negative: none
};

struct Run {  // rows that share a sequence, and their part of the places
  int first_row;
  int rows;
  int begin;
  int end;
  int seen;  // places before this one hold scores for some row
};

template <bool kCandidates>
__device__ void stage_run(const Problem& problem, const Run& run, int visible, int sequence,
                          Shared& shared, std::uint8_t* staged) {
  for (int i = 0; i < run.rows; ++i) {
    const std::int64_t row = run.first_row + i;
    const std::int64_t head = row * kHeads + threadIdx.x / kGroups;
    const float weight =
        problem.weights_are_bf16
            ? __bfloat162float(static_cast<const __nv_bfloat16*>(problem.weights)[head])
            : static_cast<const float*>(problem.weights)[head];
    stage_query(staged + i * kQueryBytes, shared.weights[i],
                problem.query + row * (kHeads * kCodeBytes),
                problem.query_scale + row * (kHeads * kScaleBytes), weight);
  }
  const std::int32_t* table =
      problem.block_table + static_cast<std::int64_t>(sequence) * problem.table_width;
  const int log_entries = problem.pages.log_entries;
  const int entry_mask = (1 << log_entries) - 1;
  if constexpr (kCandidates) {
    const std::int64_t row_blocks = problem.places / kBlockKeys;
    const std::int32_t* list = problem.candidates + run.first_row * row_blocks;
    for (int i = threadIdx.x; i < (run.end - run.begin) / kBlockKeys; i += kThreads) {
      const int block = list[run.begin / kBlockKeys + i];
      // A block that is not there is read as the first one, and its scores are not used.
      const bool inside = block >= 0 && block <= (visible - 1) / kBlockKeys;
      const int entry = inside ? block * kBlockKeys : 0;
      shared.records[i] = problem.pages.at(table[entry >> log_entries], entry & entry_mask);
      shared.entries[i] = inside ? entry : -1;
    }
  } else {
    for (int i = threadIdx.x; run.begin + i * kTileKeys < run.seen; i += kThreads) {
      const int entry = run.begin + i * kTileKeys;
      shared.records[i] = problem.pages.at(table[entry >> log_entries], entry & entry_mask);
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

// Starts the copy of this warp's keys, places `offset` to offset + 15 of the chunk; always one
// group.
template <bool kCandidates>
__device__ __forceinline__ void start_tile(const Shared& shared, int offset, int places, int stage,
                                           const RingView& ring) {
  const unsigned lane = threadIdx.x % 32;
  if (offset < places) {
    if constexpr (kCandidates) {
      const Records* records = shared.records + offset / kBlockKeys;
      const bool second = offset + kBlockKeys < places;
      ring.copy_codes(stage, 0, records[0].codes + lane * 16);
      if (second) ring.copy_codes(stage, 1, records[1].codes + lane * 16);
      if (lane < (second ? 4 : 2))
        ring.copy_scales(stage, records[lane / 2].scales + lane % 2 * 16);
    } else {
      const Records records = shared.records[offset / kTileKeys];
      const std::uint8_t* codes = records.codes + lane * 16;
      ring.copy_codes(stage, 0, codes);
      ring.copy_codes(stage, 1, codes + 512);
      if (lane < 4) ring.copy_scales(stage, records.scales + lane * 16);
    }
  }
  hopper::cp_async_commit();
}

// The sum over heads for this lane's two keys; lanes 0 and 1 of four then hold key lane / 4 and key
// lane / 4 + 8. `weights` are those of heads 8 i + 2 t and the next.
__device__ __forceinline__ float reduce_heads(const Sums& sums, const float (&scales)[2][kGroups],
                                              const float2 (&weights)[4]) {
  float total[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 4 * i + 2 * half + k;
        float x = sums[0][at] * scales[half][0];
#pragma unroll
        for (int g = 1; g < kGroups; ++g) x = fmaf(sums[g][at], scales[half][g], x);
        total[half] = fmaf(k == 0 ? weights[i].x : weights[i].y, fmaxf(x, 0.0f), total[half]);
      }
    }
  }
  const bool odd = threadIdx.x % 2 != 0;
  const float theirs = __shfl_xor_sync(~0u, odd ? total[0] : total[1], 1);
  const float pair = (odd ? total[1] : total[0]) + theirs;
  return pair + __shfl_xor_sync(~0u, pair, 2);
}

__device__ __forceinline__ void read_weights(const float* weights, float2 (&out)[4]) {
  const unsigned t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = reinterpret_cast<const float2*>(weights)[4 * i + t];
}

// One tile of this warp: keys from the ring, scores for the rows of the run.
template <bool kCandidates, bool kSingle>
__device__ __forceinline__ void score_tile(const Problem& problem, const Run& run, int visible,
                                           const Shared& shared, const std::uint8_t* staged,
                                           float2 (&weights)[4], int offset, int stage,
                                           const RingView& ring) {
  const unsigned lane = threadIdx.x % 32;
  KeyFragments keys;
  std::uint32_t packed[2];
  ring.read(stage, keys, packed);
  // Lanes 0 and 1 of four store: key lane / 4 and key lane / 4 + 8.
  offset += lane / 4 + lane % 4 * kBlockKeys;
  const int place = run.begin + offset;
  const bool stores = lane % 4 < 2 && place < run.end;
  int entry = place;
  if constexpr (kCandidates) {
    entry = stores ? shared.entries[offset / kBlockKeys] : -1;
    entry = entry < 0 ? INT_MAX : entry + static_cast<int>(lane / 4);
  }
  float* out = problem.scores + static_cast<std::int64_t>(run.first_row) * problem.places + place;
  for (int i = 0; i < (kSingle ? 1 : run.rows); ++i) {
    Sums sums;
    multiply(sums, keys, staged + i * kQueryBytes);
    if constexpr (!kSingle) {
      read_weights(shared.weights[i], weights);
      visible = shared.visible[i];
    }
    float scales[2][kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      scales[0][g] = decode_scale(packed[0], g);
      scales[1][g] = decode_scale(packed[1], g);
    }
    const float score = reduce_heads(sums, scales, weights);
    if (stores) *out = entry < visible ? score : -INFINITY;
    out += problem.places;
  }
}

template <bool kCandidates, bool kSingle>
__device__ void score_run(const Problem& problem, const Run& run, int visible, Shared& shared,
                          const std::uint8_t* staged) {
  const int warp_offset = threadIdx.x / 32 * kTileKeys;
  const int places = run.seen - run.begin;
  const RingView ring(shared.rings[threadIdx.x / 32]);
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage)
    start_tile<kCandidates>(shared, stage * kPlaces + warp_offset, places, stage, ring);
  float2 weights[4];
  read_weights(shared.weights[0], weights);
  for (int offset = warp_offset; offset - warp_offset < places;) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      // The tile has arrived, and every lane is done with the one before it.
      hopper::cp_async_wait<kStages - 2>();
      __syncwarp();
      start_tile<kCandidates>(shared, offset + (kStages - 1) * kPlaces, places,
                              (stage + kStages - 1) % kStages, ring);
      score_tile<kCandidates, kSingle>(problem, run, visible, shared, staged, weights, offset,
                                       stage, ring);
      offset += kPlaces;
      if (offset - warp_offset >= places) break;
    }
  }
}

__device__ void fill(const Problem& problem, const Run& run) {
  const int tiles = max(run.seen - run.begin + kPlaces - 1, 0) / kPlaces;
  for (int i = 0; i < run.rows; ++i) {
    float* out = problem.scores + static_cast<std::int64_t>(run.first_row + i) * problem.places;
    for (int place = run.begin + tiles * kPlaces + threadIdx.x; place < run.end; place += kThreads)
      out[place] = -INFINITY;
  }
}

template <bool kCandidates, bool kSingle>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) score(Problem problem) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  std::uint8_t* staged = memory + sizeof(Shared);
  const int lane = threadIdx.x % 32;
  const int capacity = problem.table_width << problem.pages.log_entries;
  const int end_row = min(static_cast<int>(blockIdx.x + 1) * problem.together, problem.rows);
  Run run{};
  run.begin = blockIdx.y * problem.chunk;
  run.end = min(run.begin + problem.chunk, problem.places);
  for (int row = blockIdx.x * problem.together; row < end_row; row += run.rows) {
    // Lane i looks at row i; the run ends where the sequence changes.
    const bool mine = row + lane < end_row;
    const int sequence = mine ? problem.sequence[row + lane] : -1;
    const bool valid = sequence >= 0 && sequence < problem.sequences;
    int visible = mine && valid ? min(problem.visible[row + lane], capacity) : 0;
    const int first = __shfl_sync(~0u, sequence, 0);
    const unsigned same = __ballot_sync(~0u, mine && sequence == first);
    run.first_row = row;
    run.rows = min(__ffs(static_cast<int>(~same)) - 1, kMaxTogether);
    if (lane >= run.rows) visible = 0;
    const int most = max(__reduce_max_sync(~0u, visible), 0);
    run.seen = kCandidates ? (most > 0 ? run.end : run.begin) : min(run.end, most);
    if (run.seen > run.begin) {
      if (threadIdx.x < run.rows) shared.visible[lane] = visible;
      stage_run<kCandidates>(problem, run, most, first, shared, staged);
      score_run<kCandidates, kSingle>(problem, run, most, shared, staged);
      hopper::cp_async_wait<0>();
      __syncthreads();  // the next run stages into the same memory
    }
    fill(problem, run);
  }
}

std::size_t shared_bytes(int together) { return sizeof(Shared) + together * kQueryBytes; }

struct Device {
  int sms = 0;
  cudaError_t error = cudaSuccess;
};

template <bool kCandidates, bool kSingle>
cudaError_t allow_shared() {
  return cudaFuncSetAttribute(score<kCandidates, kSingle>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes(kSingle ? 1 : kMaxTogether)));
}

// The current device, prepared on its first use.
Device current_device() {
  static std::atomic<int> known[kMaxDevices];
  Device device;
  int id = 0;
  device.error = cudaGetDevice(&id);
  if (device.error != cudaSuccess) return device;
  if (id < kMaxDevices) device.sms = known[id].load(std::memory_order_acquire);
  if (device.sms != 0) return device;
  device.error = cudaDeviceGetAttribute(&device.sms, cudaDevAttrMultiProcessorCount, id);
  for (const cudaError_t error :
       {allow_shared<true, true>(), allow_shared<false, true>(), allow_shared<false, false>()}) {
    if (device.error == cudaSuccess) device.error = error;
  }
  if (device.error == cudaSuccess && id < kMaxDevices)
    known[id].store(device.sms, std::memory_order_release);
  return device;
}

// The length of a chunk for which the rounds of blocks end soonest, where starting a block costs as
// much as kStartPlaces. Results do not depend on it.
int choose_chunk(std::int64_t groups, int places, int sms, int most) {
  constexpr std::int64_t kStartPlaces = 320;
  const std::int64_t at_once = std::int64_t{kBlocksPerSm} * sms;
  int best = kMinChunk;
  std::int64_t best_cost = INT64_MAX;
  for (int chunk = kMinChunk; chunk <= most; chunk *= 2) {
    const std::int64_t blocks = groups * ((places + chunk - 1) / chunk);
    const std::int64_t cost = (blocks + at_once - 1) / at_once * (chunk + kStartPlaces);
    if (cost <= best_cost) {
      best = chunk;
      best_cost = cost;
    }
  }
  return best;
}

bool aligned(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

int power_of_two(std::int64_t entries) {
  for (int log = 4; log <= 8; ++log)
    if (entries == std::int64_t{1} << log) return log;
  return -1;
}

int launch(Problem problem, std::int64_t rows, std::int64_t sequences, std::int64_t table_width,
           std::int64_t page_entries, std::int64_t places, std::int64_t together, void* stream) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 24;
  constexpr std::int64_t kMaxPlaces = std::int64_t{1} << 27;
  if (rows < 0 || rows > kMaxRows || places < 0 || places > kMaxPlaces || sequences < 0 ||
      sequences > kMaxRows || table_width < 0 || table_width > kMaxPlaces >> 4)
    return cudaErrorInvalidValue;
  if (together < 1 || together > kMaxTogether) return cudaErrorInvalidValue;
  problem.pages.log_entries = power_of_two(page_entries);
  if (problem.pages.log_entries < 0 || problem.pages.bytes % 16 != 0 ||
      problem.pages.bytes < page_entries * (kCodeBytes + kScaleBytes))
    return cudaErrorInvalidValue;
  if (rows == 0 || places == 0) return cudaSuccess;
  for (const void* pointer :
       {static_cast<const void*>(problem.query), static_cast<const void*>(problem.query_scale),
        problem.weights, static_cast<const void*>(problem.pages.base),
        static_cast<const void*>(problem.block_table), static_cast<const void*>(problem.sequence),
        static_cast<const void*>(problem.visible), static_cast<const void*>(problem.scores)})
    if (!aligned(pointer)) return cudaErrorInvalidValue;
  const Device device = current_device();
  if (device.error != cudaSuccess) return device.error;
  problem.rows = static_cast<int>(rows);
  problem.sequences = static_cast<int>(sequences);
  problem.table_width = static_cast<int>(table_width);
  problem.places = static_cast<int>(places);
  problem.together = static_cast<int>(together);
  const int groups = (problem.rows + problem.together - 1) / problem.together;
  problem.chunk = choose_chunk(groups, problem.places, device.sms,
                               problem.candidates != nullptr ? kMaxCandidateChunk : kMaxChunk);
  const dim3 grid(groups, (problem.places + problem.chunk - 1) / problem.chunk);
  if (grid.y > 65535) return cudaErrorInvalidValue;
  const auto on = static_cast<cudaStream_t>(stream);
  const std::size_t bytes = shared_bytes(problem.together);
  if (problem.candidates != nullptr)
    score<true, true><<<grid, kThreads, bytes, on>>>(problem);
  else if (problem.together == 1)
    score<false, true><<<grid, kThreads, bytes, on>>>(problem);
  else
    score<false, false><<<grid, kThreads, bytes, on>>>(problem);
  return cudaGetLastError();
}

}  // namespace
}  // namespace deepinfer::kernels::indexer

extern "C" {

int deepinfer_cuda_indexer_dense(const std::uint8_t* query, const std::uint8_t* query_scale,
                                 const void* weights, const std::uint8_t* pages,
                                 const std::int32_t* block_table, const std::int32_t* sequence,
                                 const std::int32_t* visible, float* scores, std::int64_t rows,
                                 std::int64_t sequences, std::int64_t table_width,
                                 std::int64_t page_bytes, std::int64_t page_entries,
                                 std::int64_t positions, std::int64_t weights_are_bf16,
                                 std::int64_t rows_together, void* stream) {
  deepinfer::kernels::indexer::Problem problem{};
  problem.query = query;
  problem.query_scale = query_scale;
  problem.weights = weights;
  problem.block_table = block_table;
  problem.sequence = sequence;
  problem.visible = visible;
  problem.scores = scores;
  problem.pages = {pages, page_bytes, 0};
  problem.weights_are_bf16 = weights_are_bf16 != 0;
  return deepinfer::kernels::indexer::launch(problem, rows, sequences, table_width, page_entries,
                                             positions, rows_together, stream);
}

int deepinfer_cuda_indexer_candidates(const std::uint8_t* query, const std::uint8_t* query_scale,
                                      const void* weights, const std::uint8_t* pages,
                                      const std::int32_t* block_table, const std::int32_t* sequence,
                                      const std::int32_t* visible, const std::int32_t* candidates,
                                      float* scores, std::int64_t rows, std::int64_t sequences,
                                      std::int64_t table_width, std::int64_t page_bytes,
                                      std::int64_t page_entries, std::int64_t count,
                                      std::int64_t weights_are_bf16, void* stream) {
  namespace indexer = deepinfer::kernels::indexer;
  if (!indexer::aligned(candidates) && rows != 0 && count != 0) return cudaErrorInvalidValue;
  if (count < 0 || count > std::int64_t{1} << 24) return cudaErrorInvalidValue;
  indexer::Problem problem{};
  problem.query = query;
  problem.query_scale = query_scale;
  problem.weights = weights;
  problem.block_table = block_table;
  problem.sequence = sequence;
  problem.visible = visible;
  problem.candidates = candidates;
  problem.scores = scores;
  problem.pages = {pages, page_bytes, 0};
  problem.weights_are_bf16 = weights_are_bf16 != 0;
  return indexer::launch(problem, rows, sequences, table_width, page_entries,
                         count * indexer::kBlockKeys, 1, stream);
}

}  // extern "C"
