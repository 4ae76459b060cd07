// csrc/kernels/moe_gemm/cuda/kernel.cuh — the grouped product as a kernel, and its launch. An
// Epilogue says what becomes of a tile:
//   Scratch<kTokens>             its shared memory, one per warpgroup
//   store<kTokens>(sum, tile, lane, scratch)   writes a tile of features times tokens
#pragma once
#include <atomic>

#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/hopper/tensor_map.h"
#include "kernels/moe_gemm/cuda/consumer.cuh"

namespace deepinfer::kernels::moe_gemm {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
template <int kCount>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
#else
template <int kCount>
__device__ __forceinline__ void keep_registers() {}

template <int kCount>
__device__ __forceinline__ void take_registers() {}
#endif

// Barrier of one warpgroup; 0 is the whole block's.
__device__ __forceinline__ void meet(int warpgroup) {
  if (warpgroup == 0) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 128;" ::: "memory");
  }
}

// One warpgroup's share of a piece of work.
struct Tile {
  int warpgroup;
  int index;  // of the feature tile
  int first_row;
  int rows;
  float factor0;  // of row 16 warp + g
  float factor1;  // of the row 8 later
};

// Multiplies and stores with the smallest instruction that holds the tile's rows; `kTokens` of
// them.
template <int kTokens, bool kFolded, typename Config, typename Epilogue>
__device__ __forceinline__ void run(const Tile& tile, Feed<Config>& feed, const Lane& lane,
                                    const Epilogue& epilogue,
                                    typename Epilogue::template Scratch<Config::kTokens>& scratch) {
  float sum[kTokens / 2];
  multiply<kTokens, kFolded>(sum, feed, lane);
  epilogue.template store<kTokens>(sum, tile, lane, scratch);
}

template <typename Config, bool kFolded, typename Epilogue>
__device__ __forceinline__ void consume(const Problem& problem, const Epilogue& epilogue,
                                        Shared<Config, Epilogue>& shared, Schedule<Config> schedule,
                                        int warpgroup) {
  const Lane lane;
  Feed<Config> feed{&shared.stages, {}, problem.stages, warpgroup};
  auto& scratch = shared.scratch[warpgroup];
  Work work;
  while (schedule.next(work)) {
    const int index = 2 * work.pair + warpgroup;
    const float* factors =
        problem.row_factor +
        (static_cast<std::int64_t>(work.expert) * 2 * problem.pairs + index) * kTileRows +
        16 * lane.warp + lane.g;
    const Tile tile{warpgroup, index,          work.first_row,
                    work.rows, __ldg(factors), __ldg(factors + 8)};
    constexpr int kStep = Config::kTokens / 4;
    if (tile.rows <= kStep) {
      run<kStep, kFolded>(tile, feed, lane, epilogue, scratch);
    } else if (tile.rows <= 2 * kStep) {
      run<2 * kStep, kFolded>(tile, feed, lane, epilogue, scratch);
    } else if (tile.rows <= 3 * kStep) {
      run<3 * kStep, kFolded>(tile, feed, lane, epilogue, scratch);
    } else {
      run<4 * kStep, kFolded>(tile, feed, lane, epilogue, scratch);
    }
  }
}

template <typename Config, bool kFolded, typename Epilogue>
__global__ void __launch_bounds__(kThreads, Config::kBlocks)
    grouped_product(const __grid_constant__ CUtensorMap map, const Problem problem,
                    const Epilogue epilogue) {
  extern __shared__ std::uint8_t dynamic[];
  const std::uint32_t start = hopper::shared_address(dynamic);
  auto& shared = *reinterpret_cast<Shared<Config, Epilogue>*>(
      dynamic + ((start + 1023) / 1024 * 1024 - start));
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&map);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      hopper::mbarrier_init(&shared.stages.full[stage], 1 + Config::kScaleWarps);
      hopper::mbarrier_init(&shared.stages.empty[stage], 4 * kConsumers);
    }
    hopper::mbarrier_init_fence();
  }
  hopper::wait_for_kernels_ahead();
  hopper::allow_dependent_launch();
  plan<Config>(problem, shared.first_tile, shared.first_row);
  __syncthreads();
  const Schedule<Config> schedule(problem, shared.first_tile, shared.first_row);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= 4 * kConsumers) {
    keep_registers<Config::kProducerRegisters>();
    const int helper = warp - 4 * kConsumers;
    if (helper == 0) {
      if (threadIdx.x % 32 == 0) copy_tiles<Config>(map, problem, shared.stages, schedule);
    } else if (helper <= Config::kScaleWarps) {
      const int lane = static_cast<int>(threadIdx.x) - 32 * (4 * kConsumers + 1);
      write_scales<Config>(problem, shared.stages, schedule, lane);
    }
  } else {
    take_registers<Config::kConsumerRegisters>();
    consume<Config, kFolded>(problem, epilogue, shared, schedule, warp / 4);
  }
}

inline bool aligned(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

// Multiprocessors of the current device; 0 if it cannot be asked.
inline int multiprocessors(int& device) {
  int count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  return count;
}

template <typename Config, bool kFolded, typename Epilogue>
int launch(const std::uint8_t* x, const Problem& problem, std::int64_t k, const Epilogue& epilogue,
           cudaStream_t stream) {
  constexpr std::size_t kShared = sizeof(Shared<Config, Epilogue>) + 1024;
  static_assert(kShared <= 227 * 1024);
  constexpr int kDevices = 64;
  static std::atomic<bool> prepared[kDevices];
  const auto kernel = grouped_product<Config, kFolded, Epilogue>;
  int device = 0;
  const int count = multiprocessors(device);
  if (count == 0 || device >= kDevices) return cudaErrorInvalidDevice;
  if (!prepared[device].load(std::memory_order_acquire)) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
    if (error != cudaSuccess) return error;
    prepared[device].store(true, std::memory_order_release);
  }
  CUtensorMap map;
  if (const cudaError_t error = hopper::map_byte_rows(&map, x, problem.rows, k, Config::kBox);
      error != cudaSuccess) {
    return error;
  }
  return hopper::launch_dependent(kernel, dim3(count * Config::kBlocks), dim3(kThreads), kShared,
                                  stream, map, problem, epilogue);
}

// Rows per expert up to which the narrow tile is faster, on average.
constexpr std::int64_t kNarrowRows = 16;

template <typename Epilogue>
int launch(const std::uint8_t* x, const Problem& problem, std::int64_t k, std::int64_t folded,
           std::int64_t tile, const Epilogue& epilogue, cudaStream_t stream) {
  const std::int64_t experts = problem.experts;
  const bool narrow = tile == 0 ? problem.rows <= kNarrowRows * experts : tile == Narrow::kTokens;
  if (narrow) {
    return folded != 0 ? launch<Narrow, true>(x, problem, k, epilogue, stream)
                       : launch<Narrow, false>(x, problem, k, epilogue, stream);
  }
  return folded != 0 ? launch<Wide, true>(x, problem, k, epilogue, stream)
                     : launch<Wide, false>(x, problem, k, epilogue, stream);
}

// What both products ask of their arguments; features: rows of an expert's matrix.
inline bool allowed(const std::uint8_t* x, const Problem& problem, std::int64_t rows,
                    std::int64_t experts, std::int64_t k, std::int64_t features,
                    std::int64_t folded, std::int64_t tile) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  if (rows < 0 || rows > 0x7FFFFFFF || experts < 1 || experts > kMaxExperts) return false;
  if (k < 32 || k > kMost || k % 32 != 0) return false;
  if (features < 32 || features > kMost || features % 32 != 0) return false;
  if (folded < 0 || folded > 1) return false;
  if (tile != 0 && tile != Narrow::kTokens && tile != Wide::kTokens) return false;
  if (!aligned(problem.offsets) || !aligned(problem.weight) || !aligned(problem.row_factor)) {
    return false;
  }
  return rows == 0 || (aligned(x) && aligned(problem.x_scale));
}

inline Problem problem_of(const std::uint8_t* x_scale, const std::int32_t* offsets,
                          const std::uint8_t* weight, const float* row_factor, std::int64_t rows,
                          std::int64_t experts, std::int64_t k, std::int64_t features) {
  return {x_scale,
          offsets,
          weight,
          row_factor,
          static_cast<int>(rows),
          static_cast<int>(experts),
          static_cast<int>(k / 32),
          static_cast<int>((k + kDepth * kChunk - 1) / (kDepth * kChunk)),
          static_cast<int>((features + 2 * kTileRows - 1) / (2 * kTileRows))};
}

}  // namespace deepinfer::kernels::moe_gemm
