// csrc/kernels/sparse_mla/cuda/pipeline.cuh — what the roles of the sm_90a kernel share: memory,
// barriers and the way of a tile through them.
#pragma once
#include <cstdint>

#include "kernels/hopper/mbarrier.cuh"
#include "kernels/sparse_mla/cuda/problem.cuh"

namespace deepinfer::kernels::sparse_mla {

using namespace hopper;

constexpr int kTile = 64;
constexpr int kParts = 4;                    // of a tile, 16 rows each
constexpr int kSlots = 5;                    // of a warp, for stored rows on their way
constexpr int kSlotBytes = 4 * kEntryBytes;  // four entries or two window rows
constexpr int kPanelBytes = 64 * 128;        // 64 rows of 64 channels
constexpr int kTileBytes = kTile * kChannels * 2;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 4 * kGroup;
constexpr float kSlack = 8.0f;  // powers of two by which the maximum may lag

struct alignas(1024) Shared {
  unsigned char keys[2][kTileBytes];
  unsigned char query[kTileBytes];
  unsigned char weights[kPanelBytes];
  unsigned char raw[4][kSlots][kSlotBytes];
  // Every thread that has a part in it arrives.
  std::uint64_t full[2];          // of a buffer: all rows are there
  std::uint64_t free[2][kParts];  // a part's rows have been summed
  std::uint64_t weighed[2];       // its weights are there
  std::uint64_t finished;         // a token's scale is there
  std::uint64_t taken;            // and was read
  unsigned long long visible[8];  // of the latest tiles: 16 bits of each warp of rows
  float rescale[2][kHeads];
  std::uint32_t rescaled[2][4];
  float scale[kHeads];
  float rotation[kTurned];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// This thread's ordinary writes to shared memory are seen by the tensor core after the barrier that
// follows.
__device__ __forceinline__ void fence_to_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void group_barrier(int id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// The tile that a role has come to, counted over all tokens, and the phase of its buffer's
// barriers.
struct Turn {
  int tile = 0;
  int buffer = 0;
  std::uint32_t parity = 0;
  __device__ Turn before() const { return {tile - 1, buffer ^ 1, parity ^ (buffer ^ 1u)}; }
  __device__ void next() {
    ++tile;
    buffer ^= 1;
    parity ^= buffer ^ 1u;
  }
};

// What this lane did before is done. Every lane says so for itself: racecheck does not take one
// lane's word for its warp, and the arrivals of a converged warp are one update of the barrier.
__device__ __forceinline__ void announce(std::uint64_t* barrier) {
  __syncwarp();
  mbarrier_arrive(barrier);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace deepinfer::kernels::sparse_mla
