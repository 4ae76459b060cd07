// csrc/kernels/sparse_mla/cuda/portable.cu — see sparse_mla.h; mma.sync, any device from sm_90 on.
// Plain on purpose: one block of eight warps per token, 32 rows at a time, no overlap. Warp w has
// heads 16 (w % 4) to 16 (w % 4) + 15; of a tile's scores it has 16 columns, of the result 256
// channels, the first or the second by w / 4.
#include <algorithm>
#include <cmath>

#include "kernels/hopper/mma_sync.cuh"
#include "kernels/sparse_mla/cuda/problem.cuh"
#include "kernels/sparse_mla/cuda/rows.cuh"

namespace deepinfer::kernels::sparse_mla {
namespace {

using namespace hopper;

constexpr int kTile = 32;
constexpr int kThreads = 256;
constexpr int kLine = kChannels + 8;  // elements of a padded line: no two rows on one bank
constexpr int kWeightLine = kTile + 8;

struct alignas(16) Shared {
  __nv_bfloat16 query[kHeads][kLine];
  __nv_bfloat16 keys[kTile][kLine];
  __nv_bfloat16 weights[kHeads][kWeightLine];
  float most[2][kHeads];  // of the two halves of a tile's columns
  float sum[2][kHeads];
  float rotation[kTurned];
  std::uint8_t seen[kTile];
};

__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

// Thread t writes channels 64 (t % 8) and on of row t / 8.
__device__ void load_tile(const Problem& problem, const Walk<kTile>& walk, Shared& shared) {
  const int row = threadIdx.x / 8;
  const int panel = threadIdx.x % 8;
  const bool window = walk.in_window();
  const std::uint8_t* source = row_address(problem, window, walk.index(problem, row));
  if (panel == 0) shared.seen[row] = source != nullptr;
  uint4* line = reinterpret_cast<uint4*>(shared.keys[row] + panel * 64);
  if (source == nullptr) {
    for (int i = 0; i < 8; ++i) line[i] = make_uint4(0, 0, 0, 0);
    return;
  }
  std::uint32_t v[4];
  if (window) {
    const auto* codes = reinterpret_cast<const std::uint32_t*>(source + panel * 64);
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t factor = window_factor(source[kChannels + panel * 2 + i / 4]);
      window_values(codes[2 * i], factor, v);
      window_values(codes[2 * i + 1], factor, v + 2);
      line[i] = make_uint4(v[0], v[1], v[2], v[3]);
    }
    return;
  }
  const auto* codes = reinterpret_cast<const std::uint32_t*>(source + panel * 32);
  EntryFactor factors[4];
  entry_factors(reinterpret_cast<const std::uint32_t*>(source + kChannels / 2)[panel], factors);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    entry_values(codes[i], factors[i / 2], v);
    line[i] = make_uint4(v[0], v[1], v[2], v[3]);
  }
}

struct Lane {
  int group;  // row of the fragments, and eight below
  int pair;   // first of two columns
  int head;   // of `group`
  int half;   // which columns or channels of the warp
  int head_tile;
};

__device__ __forceinline__ Lane lane_of_thread() {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  return {lane / 4, lane % 4 * 2, warp % 4 * 16 + lane / 4, warp / 4, warp % 4 * 16};
}

__device__ void scores(const Shared& shared, const Lane& at, float (&s)[2][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = 0.0f;
#pragma unroll 4
  for (int k = 0; k < kChannels; k += 16) {
    std::uint32_t a[4];
    std::uint32_t b[4];
    ldmatrix_x4(a, &shared.query[at.head_tile + lane % 16][k + lane / 16 * 8]);
    ldmatrix_x4(b, &shared.keys[at.half * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
    mma_bf16_16x8x16(s[0], a, b[0], b[1]);
    mma_bf16_16x8x16(s[1], a, b[2], b[3]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = at.half * 16 + i / 4 * 8 + at.pair + i % 2;
    s[i / 4][i % 4] =
        shared.seen[column] != 0 ? s[i / 4][i % 4] * (kScoreScale * kRestore) : -INFINITY;
  }
}

__device__ __forceinline__ float over_four_lanes(float x, bool largest) {
  const float y = __shfl_xor_sync(~0u, x, 1);
  x = largest ? fmaxf(x, y) : x + y;
  const float z = __shfl_xor_sync(~0u, x, 2);
  return largest ? fmaxf(x, z) : x + z;
}

// Maximum over the tile's columns of this thread's two heads.
__device__ void tile_most(Shared& shared, const Lane& at, const float (&s)[2][4],
                          float (&most)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float x = fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1]));
    x = over_four_lanes(x, true);
    if (at.pair == 0) shared.most[at.half][at.head + 8 * h] = x;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h)
    most[h] = fmaxf(shared.most[0][at.head + 8 * h], shared.most[1][at.head + 8 * h]);
}

__device__ void add_values(const Shared& shared, const Lane& at, float (&o)[32][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kTile; k += 16) {
    std::uint32_t a[4];
    ldmatrix_x4(a, &shared.weights[at.head_tile + lane % 16][k + lane / 16 * 8]);
#pragma unroll
    for (int block = 0; block < 32; block += 2) {
      std::uint32_t b[4];
      ldmatrix_x4_transposed(
          b, &shared.keys[k + lane % 16][at.half * 256 + block * 8 + lane / 16 * 8]);
      mma_bf16_16x8x16(o[block], a, b[0], b[1]);
      mma_bf16_16x8x16(o[block + 1], a, b[2], b[3]);
    }
  }
}

__device__ void store(const Problem& problem, const Shared& shared, const Lane& at, int token,
                      const float (&scale)[2], const float (&o)[32][4]) {
  __nv_bfloat16* out = problem.out + static_cast<std::int64_t>(token) * kHeads * kChannels;
#pragma unroll
  for (int block = 0; block < 32; ++block) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float a = o[block][2 * h] * scale[h];
      float b = o[block][2 * h + 1] * scale[h];
      if (block >= 24 && at.half == 1) {
        const float* turn = shared.rotation + (block - 24) * 8 + at.pair;
        const float even = a * turn[0] + b * turn[1];
        b = b * turn[0] - a * turn[1];
        a = even;
      }
      *reinterpret_cast<__nv_bfloat162*>(out + (at.head + 8 * h) * kChannels + at.half * 256 +
                                         block * 8 + at.pair) = __floats2bfloat162_rn(a, b);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    attend_portable(const __grid_constant__ Problem problem) {
  extern __shared__ unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Lane at = lane_of_thread();
  const int token = static_cast<int>(blockIdx.x);
  const std::int64_t first = static_cast<std::int64_t>(token) * kHeads * kChannels;
  for (int i = threadIdx.x; i < kHeads * kChannels / 8; i += kThreads) {
    *reinterpret_cast<uint4*>(&shared.query[i / 64][i % 64 * 8]) =
        reinterpret_cast<const uint4*>(problem.query + first)[i];
  }
  if (threadIdx.x < kTurned) {
    shared.rotation[threadIdx.x] =
        problem.rotation[static_cast<std::int64_t>(token) * kTurned + threadIdx.x];
  }
  float o[32][4];
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i / 4][i % 4] = 0.0f;
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // of this thread's columns
  for (Walk<kTile> walk(problem, token); walk.token == token; walk.next_tile(problem)) {
    __syncthreads();
    load_tile(problem, walk, shared);
    __syncthreads();
    float s[2][4];
    scores(shared, at, s);
    float most[2];
    tile_most(shared, at, s, most);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float grown = fmaxf(top[h], most[h]);
      const float base = grown == -INFINITY ? 0.0f : grown;
      const float shrink = exp2f(top[h] - base);
      top[h] = grown;
      sum[h] *= shrink;
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const float p = exp2f(s[block][2 * h] - base);
        const float q = exp2f(s[block][2 * h + 1] - base);
        sum[h] += p + q;
        *reinterpret_cast<__nv_bfloat162*>(
            &shared.weights[at.head + 8 * h][at.half * 16 + block * 8 + at.pair]) =
            __floats2bfloat162_rn(p, q);
      }
#pragma unroll
      for (int block = 0; block < 32; ++block) {
        o[block][2 * h] *= shrink;
        o[block][2 * h + 1] *= shrink;
      }
    }
    __syncthreads();
    add_values(shared, at, o);
  }
  float scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float part = over_four_lanes(sum[h], false);
    if (at.pair == 0) shared.sum[at.half][at.head + 8 * h] = part;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = shared.sum[0][at.head + 8 * h] + shared.sum[1][at.head + 8 * h];
    const float last = problem.sink[at.head + 8 * h] * 1.4426950408889634f;
    const float most = fmaxf(top[h], last);
    const float factor = exp2f(top[h] - most);
    scale[h] = total == 0.0f ? 0.0f : factor / (total * factor + exp2f(last - most)) * kRestore;
  }
  store(problem, shared, at, token, scale, o);
}

}  // namespace

cudaError_t launch_portable(const Problem& problem, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared));
  if (const cudaError_t error = cudaFuncSetAttribute(
          attend_portable, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess)
    return error;
  attend_portable<<<static_cast<unsigned>(problem.tokens), kThreads, kBytes, stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace deepinfer::kernels::sparse_mla
