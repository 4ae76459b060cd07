// csrc/kernels/moe_gemm/cuda/kernel.cuh — the grouped product as a kernel, and its launch. An
// Epilogue says what becomes of a tile:
//   Scratch<kTokens>             its shared memory, one per warpgroup
//   store<kTokens>(sum, tile, lane, scratch)   writes a tile of features times tokens
#pragma once
#include <atomic>

#include "kernels/hopper/dependent_launch.cuh"
#include "kernels/hopper/tensor_map.h"
#include "kernels/moe_gemm/cuda/handover.cuh"

namespace deepinfer::kernels::moe_gemm {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
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

// One packed tile's share of a piece of work.
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
template <int kTokens, typename Config, typename Epilogue>
__device__ __forceinline__ void run(const Problem& problem, const Work& work, Feed<Config>& feed,
                                    const Lane& lane, const Epilogue& epilogue,
                                    typename Epilogue::template Scratch<Config::kTokens>& scratch) {
  constexpr int kTiles = Config::kTiles;
  float sums[kTiles][kTokens / 2] = {};
  if (work.begin > 0) take_over<kTokens, Config>(sums, problem, feed.warpgroup, lane);
  multiply<kTokens>(sums, feed, work.end - work.begin, lane);
  if (work.end < problem.stages<Config>()) {
    hand_over<kTokens, Config>(sums, problem, feed.warpgroup, lane);
    return;
  }
  const int first = kPairs * kPairTiles * work.quad + kTiles * feed.warpgroup;
  if (first >= kPairTiles * problem.pairs) return;
  const std::int64_t tiles = static_cast<std::int64_t>(work.expert) * problem.pairs * kPairTiles;
  const float* factors = problem.row_factor + (tiles + first) * kTileRows + 16 * lane.warp + lane.g;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const Tile tile{feed.warpgroup,
                    first + t,
                    work.first_row,
                    work.rows,
                    __ldg(factors + t * kTileRows),
                    __ldg(factors + t * kTileRows + 8)};
    epilogue.template store<kTokens>(sums[t], tile, lane, scratch);
  }
}

template <typename Config, typename Epilogue>
__device__ __forceinline__ void consume(const Problem& problem, const Epilogue& epilogue,
                                        Shared<Config, Epilogue>& shared, int warpgroup) {
  const Lane lane;
  Schedule<Config> schedule(problem, shared.first_tile, shared.first_row);
  Feed<Config> feed{&shared.stages, {}, warpgroup};
  auto& scratch = shared.scratch[warpgroup];
  Work work;
  while (schedule.next(work)) {
    constexpr int kStep = Config::kBox;
    static_assert(4 * kStep == Config::kTokens);
    if (work.rows <= kStep) {
      run<kStep>(problem, work, feed, lane, epilogue, scratch);
    } else if (work.rows <= 2 * kStep) {
      run<2 * kStep>(problem, work, feed, lane, epilogue, scratch);
    } else if (work.rows <= 3 * kStep) {
      run<3 * kStep>(problem, work, feed, lane, epilogue, scratch);
    } else {
      run<4 * kStep>(problem, work, feed, lane, epilogue, scratch);
    }
  }
}

template <typename Config, typename Epilogue>
__global__ void __launch_bounds__(kThreads<Config>, 1)
    grouped_product(const __grid_constant__ CUtensorMap map, const Problem problem,
                    const Epilogue epilogue) {
  extern __shared__ std::uint8_t dynamic[];
  const std::uint32_t start = hopper::shared_address(dynamic);
  auto& shared = *reinterpret_cast<Shared<Config, Epilogue>*>(
      dynamic + ((start + 1023) / 1024 * 1024 - start));
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&map);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      hopper::mbarrier_init(&shared.stages.full[stage], 1);
      hopper::mbarrier_init(&shared.stages.empty[stage], 128 * Config::kWarpgroups);
    }
    hopper::mbarrier_init_fence();
  }
  hopper::wait_for_kernels_ahead();
  hopper::allow_dependent_launch();
  plan<Config>(problem, shared.first_tile, shared.first_row);
  __syncthreads();
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= 4 * Config::kWarpgroups) {
    keep_registers<Config::kProducerRegisters>();
    if (threadIdx.x == 128 * Config::kWarpgroups) {
      copy_tiles<Config>(map, problem, shared.stages,
                         Schedule<Config>(problem, shared.first_tile, shared.first_row));
    }
  } else {
    take_registers<Config::kConsumerRegisters>();
    consume<Config>(problem, epilogue, shared, warp / 4);
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

// A bf16 matrix [rows, cols], C-contiguous, read in boxes of box_rows x 64 columns with the
// 128-byte swizzle; outside of the matrix are zeros. cols % 8 == 0, 16-byte aligned base.
inline cudaError_t map_bf16_rows(CUtensorMap* map, const void* base, std::int64_t rows,
                                 std::int64_t cols, std::uint32_t box_rows) {
  const hopper::EncodeTensorMap encode = hopper::encode_tensor_map();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t extent[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(2 * cols)};
  const cuuint32_t box[2] = {kPanel, box_rows};
  const cuuint32_t step[2] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(base), extent, stride, box,
             step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename Config, typename Epilogue>
int launch_product(const void* x, const Problem& problem, std::int64_t k, const Epilogue& epilogue,
                   cudaStream_t stream) {
  constexpr std::size_t kShared = sizeof(Shared<Config, Epilogue>) + 1024;
  static_assert(kShared <= 227 * 1024);
  constexpr int kDevices = 64;
  static std::atomic<bool> prepared[kDevices];
  const auto kernel = grouped_product<Config, Epilogue>;
  int device = 0;
  const int count = multiprocessors(device);
  if (count == 0 || device >= kDevices) return cudaErrorInvalidDevice;
  if (!prepared[device].load(std::memory_order_acquire)) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
    if (error != cudaSuccess) return error;
    prepared[device].store(true, std::memory_order_release);
  }
  Problem known = problem;
  if (problem.sums == nullptr || problem.blocks < count) known.flags = nullptr;
  CUtensorMap map;
  if (const cudaError_t error = map_bf16_rows(&map, x, problem.rows, k, Config::kBox);
      error != cudaSuccess) {
    return error;
  }
  return hopper::launch_dependent(kernel, dim3(count), dim3(kThreads<Config>), kShared, stream, map,
                                  known, epilogue);
}

template <typename Epilogue>
int launch(const void* x, const Problem& problem, std::int64_t k, std::int64_t tile,
           const Epilogue& epilogue, cudaStream_t stream) {
  const bool small =
      tile == 0 ? problem.rows <= Small::kTokens * problem.experts : tile == Small::kTokens;
  return small ? launch_product<Small>(x, problem, k, epilogue, stream)
               : launch_product<Large>(x, problem, k, epilogue, stream);
}

// What both products ask of their arguments; features: rows of an expert's matrix.
inline bool allowed(const void* x, const Problem& problem, std::int64_t rows, std::int64_t experts,
                    std::int64_t k, std::int64_t features, std::int64_t tile) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  if (rows < 0 || rows > 0x7FFFFFFF || experts < 1 || experts > kMaxExperts) return false;
  if (k < 32 || k > kMost || k % 32 != 0) return false;
  if (features < 32 || features > kMost || features % 32 != 0) return false;
  if (tile != 0 && tile != Small::kTokens && tile != Large::kTokens) return false;
  if (reinterpret_cast<std::uintptr_t>(problem.sums) % 16 != 0) return false;
  if (!aligned(problem.offsets) || !aligned(problem.weight) || !aligned(problem.row_factor)) {
    return false;
  }
  return rows == 0 || aligned(x);
}

inline Problem problem_of(const std::int32_t* offsets, const std::uint8_t* weight,
                          const float* row_factor, float* sums, std::int32_t* flags,
                          std::int64_t blocks, std::int64_t rows, std::int64_t experts,
                          std::int64_t k, std::int64_t features) {
  const auto pairs =
      static_cast<int>((features + kPairTiles * kTileRows - 1) / (kPairTiles * kTileRows));
  return {offsets,
          weight,
          row_factor,
          static_cast<int>(rows),
          static_cast<int>(experts),
          static_cast<int>((k + kChunk - 1) / kChunk),
          static_cast<int>((k + 2 * kChunk - 1) / (2 * kChunk)) * 2,
          pairs,
          (pairs + kPairs - 1) / kPairs,
          sums,
          flags,
          static_cast<int>(blocks < 0x7FFFFFFF ? blocks : 0x7FFFFFFF)};
}

}  // namespace deepinfer::kernels::moe_gemm
