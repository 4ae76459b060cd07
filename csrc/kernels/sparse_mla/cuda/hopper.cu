// csrc/kernels/sparse_mla/cuda/hopper.cu — see sparse_mla.h; wgmma, sm_90a only.
//
// A block takes tokens one after another, all its shared memory at once, in four warpgroups:
//   rows     gathers 64 rows, makes them bf16 and stores them as a tile [64, 512], one ahead;
//   scores   S = Q K^T, the softmax with a running maximum, weights P to shared memory;
//   values   two of them, 256 channels each: O += P K, then scale, rotate, store.
// Barriers count a tile's way: full (four parts of 128 channels) -> weighed -> free. The maximum is
// a reference that may lag by 2^8, so that sums are rescaled only where a score grows past that.
#include <algorithm>
#include <cmath>

#include "kernels/hopper/cp_async.cuh"
#include "kernels/hopper/mbarrier.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/hopper/wgmma_bf16.cuh"
#include "kernels/sparse_mla/cuda/problem.cuh"
#include "kernels/sparse_mla/cuda/rows.cuh"

namespace deepinfer::kernels::sparse_mla {
namespace {

using namespace hopper;

constexpr int kTile = 64;
constexpr int kParts = 4;              // of a tile, by channels
constexpr int kPanelBytes = 64 * 128;  // 64 rows of 64 channels
constexpr int kTileBytes = kTile * kChannels * 2;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 4 * kGroup;
constexpr float kSlack = 8.0f;  // powers of two by which the maximum may lag

struct alignas(1024) Shared {
  unsigned char keys[2][kTileBytes];
  unsigned char query[kTileBytes];
  unsigned char weights[2][kPanelBytes];
  std::uint64_t full[2][kParts];
  std::uint64_t free[2];
  std::uint64_t weighed[2];
  std::uint64_t finished;  // a token's scale is there
  std::uint64_t taken;     // and was read
  unsigned long long visible[2];
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

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ uint4 load_once(const std::uint8_t* address) {
  uint4 d;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "l"(address));
  return d;
}

// The next tile whose buffer a role turns to.
struct Turn {
  int buffer = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    buffer ^= 1;
    parity ^= buffer == 0 ? 1u : 0u;
  }
};

// What a thread holds of a row while it comes: half a tile's share of a row of entries (two
// panels), a quarter of one of the window (one panel).
struct Held {
  uint4 codes[4];
  std::uint32_t scales[2];
};

__device__ __forceinline__ void hold(const std::uint8_t* row, bool window, int unit, int side,
                                     Held& held) {
#pragma unroll
  for (int i = 0; i < 4; ++i) held.codes[i] = make_uint4(0, 0, 0, 0);
  held.scales[0] = held.scales[1] = 0;
  if (row == nullptr) return;
  if (window) {
    const int panel = 2 * unit + side;
#pragma unroll
    for (int i = 0; i < 4; ++i) held.codes[i] = load_once(row + panel * 64 + i * 16);
    held.scales[0] = __ldg(reinterpret_cast<const std::uint16_t*>(row + kChannels) + panel);
    return;
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int panel = 2 * (2 * unit + k) + side;
    held.codes[2 * k] = load_once(row + panel * 32);
    held.codes[2 * k + 1] = load_once(row + panel * 32 + 16);
    held.scales[k] = __ldg(reinterpret_cast<const std::uint32_t*>(row + kChannels / 2) + panel);
  }
}

__device__ __forceinline__ void put(unsigned char* line, int unit, int row,
                                    const std::uint32_t (&values)[4]) {
  *reinterpret_cast<uint4*>(line + ((unit ^ (row & 7)) << 4)) =
      make_uint4(values[0], values[1], values[2], values[3]);
}

__device__ __forceinline__ std::uint32_t word(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// 64 channels of one row, into its 128-byte line of a panel.
__device__ __forceinline__ void store_window(const Held& held, unsigned char* line, int row) {
#pragma unroll
  for (int unit = 0; unit < 8; ++unit) {
    const std::uint32_t factor =
        window_factor(unit < 4 ? held.scales[0] & 0xFF : held.scales[0] >> 8);
    std::uint32_t values[4];
    window_values(word(held.codes[unit / 2], unit % 2 * 2), factor, values);
    window_values(word(held.codes[unit / 2], unit % 2 * 2 + 1), factor, values + 2);
    put(line, unit, row, values);
  }
}

__device__ __forceinline__ void store_entry(const Held& held, int k, unsigned char* line, int row) {
  EntryFactor factors[4];
  entry_factors(held.scales[k], factors);
#pragma unroll
  for (int unit = 0; unit < 8; ++unit) {
    std::uint32_t values[4];
    entry_values(word(held.codes[2 * k + unit / 4], unit % 4), factors[unit / 2], values);
    put(line, unit, row, values);
  }
}

// All lanes' stores of one part of a tile are done: lane 0 says so to the tensor core's users.
__device__ __forceinline__ void announce(std::uint64_t* barrier) {
  fence_to_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// Lane l of a warp has row 16 warp + l % 16 and of each part the panel l / 16. Rows of the next
// tile are loaded into registers as those of this one leave them.
__device__ void gather_rows(const Problem& problem, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const int row = warp * 16 + lane % 16;
  const int side = lane / 16;
  Walk<kTile> walk(problem, blockIdx.x);
  Turn turn;
  Held first, second;
  bool window = walk.in_window();
  const std::uint8_t* address = row_address(problem, window, walk.index(problem, row));
  hold(address, window, 0, side, first);
  hold(address, window, 1, side, second);
  walk.next_tile(problem);
  bool more = !walk.done(problem);
  bool next_window = more && walk.in_window();
  int next_index = more ? walk.index(problem, row) : -1;
  for (;;) {
    const bool last = !more;
    const bool coming_window = next_window;
    const std::uint8_t* coming = last ? nullptr : row_address(problem, next_window, next_index);
    if (more) {
      walk.next_tile(problem);
      more = !walk.done(problem);
      next_window = more && walk.in_window();
      next_index = more ? walk.index(problem, row) : -1;
    }
    unsigned char* lines = shared.keys[turn.buffer] + side * kPanelBytes + row * 128;
    std::uint64_t* full = shared.full[turn.buffer];
    mbarrier_wait(&shared.free[turn.buffer], turn.parity ^ 1);
    const unsigned seen = __ballot_sync(~0u, address != nullptr);
    if (lane == 0) {
      reinterpret_cast<std::uint16_t*>(&shared.visible[turn.buffer])[warp] =
          static_cast<std::uint16_t>(seen);
    }
    if (window) {
      store_window(first, lines, row);
      hold(address, true, 2, side, first);
      announce(full);
      store_window(second, lines + 2 * kPanelBytes, row);
      hold(address, true, 3, side, second);
      announce(full + 1);
      store_window(first, lines + 4 * kPanelBytes, row);
      hold(coming, coming_window, 0, side, first);
      announce(full + 2);
      store_window(second, lines + 6 * kPanelBytes, row);
      hold(coming, coming_window, 1, side, second);
      announce(full + 3);
    } else {
      store_entry(first, 0, lines, row);
      announce(full);
      store_entry(first, 1, lines + 2 * kPanelBytes, row);
      hold(coming, coming_window, 0, side, first);
      announce(full + 1);
      store_entry(second, 0, lines + 4 * kPanelBytes, row);
      announce(full + 2);
      store_entry(second, 1, lines + 6 * kPanelBytes, row);
      hold(coming, coming_window, 1, side, second);
      announce(full + 3);
    }
    if (last) return;
    address = coming;
    window = coming_window;
    turn.next();
  }
}

__device__ __forceinline__ void load_query(const Problem& problem, Shared& shared, int token) {
  const unsigned char* source = reinterpret_cast<const unsigned char*>(
      problem.query + static_cast<std::int64_t>(token) * kHeads * kChannels);
  const int thread = threadIdx.x % kGroup;
#pragma unroll 8
  for (int i = 0; i < kTileBytes / 16 / kGroup; ++i) {
    const int unit = i * kGroup + thread;
    const int row = unit / 64;
    const int panel = unit / 8 % 8;
    cp_async_16(shared.query + panel * kPanelBytes + row * 128 + ((unit % 8 ^ (row & 7)) << 4),
                source + unit * 16);
  }
  cp_async_commit();
}

// Part by part, as the parts of the tile come.
__device__ __forceinline__ void start_scores(Shared& shared, const Turn& turn, float (&s)[32]) {
  const std::uint64_t query = wgmma_descriptor(shared.query);
  const std::uint64_t keys = wgmma_descriptor(shared.keys[turn.buffer]);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    mbarrier_wait(&shared.full[turn.buffer][part], turn.parity);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const int at = ((part * 2 + step / 4) * kPanelBytes + step % 4 * 32) / 16;
      wgmma_bf16(s, query + at, keys + at, part + step > 0);
    }
  }
  wgmma_commit();
}

// The running softmax of two rows of heads, a quarter of their columns in this thread.
struct Softmax {
  float top[2];  // reference of the exponent, in powers of two
  float sum[2];  // this thread's part

  __device__ void reset() {
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  // Scores to weights in place; true in `grown` where the sums so far shrink by `shrink`.
  __device__ __forceinline__ bool weigh(float (&s)[32], unsigned long long visible,
                                        float (&shrink)[2]) {
    constexpr float kScale = kScoreScale * kRestore;
    const int column = threadIdx.x % 4 * 2;
    if (visible != ~0ull) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int at = i / 4 * 8 + i % 2;
        if ((visible >> (at + column) & 1) == 0) s[i] = -INFINITY;
      }
    }
    bool grown = false;
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = s[2 * half];
#pragma unroll
      for (int i = 0; i < 16; ++i) most = fmaxf(most, s[i / 2 * 4 + 2 * half + i % 2]);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * kScale;
      shrink[half] = 1.0f;
      if (most > top[half] + kSlack) {
        shrink[half] = exp2_fast(top[half] - most);
        top[half] = most;
        sum[half] *= shrink[half];
        grown = true;
      }
      base[half] = top[half] == -INFINITY ? 0.0f : top[half];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part = 0.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float& z = s[i / 2 * 4 + 2 * half + i % 2];
        z = exp2_fast(fmaf(z, kScale, -base[half]));
        part += z;
      }
      sum[half] += part;
    }
    return grown;
  }

  // What the summed rows are to be multiplied by; 0 where nothing was seen.
  __device__ float final_scale(int half, float sink) const {
    float total = sum[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const float last = sink * 1.4426950408889634f;
    const float most = fmaxf(top[half], last);
    const float factor = exp2_fast(top[half] - most);
    const float all = total * factor + exp2_fast(last - most);
    return total == 0.0f ? 0.0f : factor / all * kRestore;
  }
};

__device__ __forceinline__ void store_weights(unsigned char* weights, const float (&s)[32]) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int block = 0; block < 8; block += 2) {
    const int unit = block + lane / 16;
    const std::uint32_t address = shared_address(weights + row * 128 + ((unit ^ (row & 7)) << 4));
    const float* v = s + 4 * block;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(pack_bf16(v[0], v[1])), "r"(pack_bf16(v[2], v[3])), "r"(pack_bf16(v[4], v[5])),
                 "r"(pack_bf16(v[6], v[7]))
                 : "memory");
  }
}

// The tile's weights and, where the maximum grew, what earlier sums are multiplied by.
__device__ __forceinline__ void publish(Shared& shared, const Turn& turn, Softmax& softmax,
                                        float (&s)[32]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  float shrink[2];
  const bool grown = softmax.weigh(s, shared.visible[turn.buffer], shrink);
  const bool any = __any_sync(~0u, grown);
  if (any && lane % 4 == 0) {
    shared.rescale[turn.buffer][warp * 16 + lane / 4] = shrink[0];
    shared.rescale[turn.buffer][warp * 16 + lane / 4 + 8] = shrink[1];
  }
  if (lane == 0) shared.rescaled[turn.buffer][warp] = any;
  store_weights(shared.weights[turn.buffer], s);
  announce(&shared.weighed[turn.buffer]);
}

__device__ void weigh_scores(const Problem& problem, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int thread = threadIdx.x % kGroup;
  const int head = thread / 32 * 16 + lane / 4;
  const float sink[2] = {problem.sink[head], problem.sink[head + 8]};
  Walk<kTile> walk(problem, blockIdx.x);
  Turn turn;
  Softmax softmax;
  std::uint32_t parity = 1;
  load_query(problem, shared, walk.token);
  while (!walk.done(problem)) {
    const float turned =
        thread < kTurned
            ? __ldg(problem.rotation + static_cast<std::int64_t>(walk.token) * kTurned + thread)
            : 0.0f;
    const int tiles = walk.tiles;
    walk.next_token(problem);
    cp_async_wait<0>();
    fence_to_async();
    group_barrier(1);
    softmax.reset();
    float s[32];
    for (int tile = 0; tile < tiles; ++tile) {
      start_scores(shared, turn, s);
      wgmma_wait<0>();
      wgmma_pin(s);
      if (tile == tiles - 1 && !walk.done(problem)) {
        group_barrier(1);  // the query's last use, by all four warps
        load_query(problem, shared, walk.token);
      }
      publish(shared, turn, softmax, s);
      turn.next();
    }
    mbarrier_wait(&shared.taken, parity);
    parity ^= 1;
    const float scale[2] = {softmax.final_scale(0, sink[0]), softmax.final_scale(1, sink[1])};
    if (lane % 4 == 0) {
      shared.scale[head] = scale[0];
      shared.scale[head + 8] = scale[1];
    }
    if (thread < kTurned) shared.rotation[thread] = turned;
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&shared.finished);
  }
}

// Of a 4 x 4 matrix of words whose column c is in lane c of four, row c to lane c.
__device__ __forceinline__ void transpose(std::uint32_t (&w)[4]) {
  const int lane = threadIdx.x % 4;
  const bool odd = (lane & 1) != 0;
  const bool high = (lane & 2) != 0;
  std::uint32_t x = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
  std::uint32_t y = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  (odd ? w[0] : w[1]) = x;
  (odd ? w[2] : w[3]) = y;
  x = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2);
  y = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
  (high ? w[0] : w[2]) = x;
  (high ? w[1] : w[3]) = y;
}

// Channels 256 side to 256 side + 255 of a token's result.
__device__ __forceinline__ void store_result(const Problem& problem, const Shared& shared,
                                             int token, int side, float (&o)[2][64]) {
  const int lane = threadIdx.x % 32;
  const int head = threadIdx.x / 32 % 4 * 16 + lane / 4;
  const float scale[2] = {shared.scale[head], shared.scale[head + 8]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __nv_bfloat16* line =
        problem.out + (static_cast<std::int64_t>(token) * kHeads + head + 8 * half) * kChannels +
        side * 256;
#pragma unroll
    for (int four = 0; four < 8; ++four) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = four * 4 + i;
        float a = o[block / 16][block % 16 * 4 + 2 * half] * scale[half];
        float b = o[block / 16][block % 16 * 4 + 2 * half + 1] * scale[half];
        if (block >= 24 && side == 1) {
          const float2 turn =
              reinterpret_cast<const float2*>(shared.rotation)[(block - 24) * 4 + lane % 4];
          const float even = a * turn.x + b * turn.y;
          b = b * turn.x - a * turn.y;
          a = even;
        }
        words[i] = pack_bf16(a, b);
      }
      transpose(words);
      *reinterpret_cast<uint4*>(line + four * 32 + lane % 4 * 8) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

__device__ void sum_values(const Problem& problem, Shared& shared, int side) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  Walk<kTile> walk(problem, blockIdx.x);
  Turn turn;
  std::uint32_t parity = 0;
  float o[2][64];
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i / 64][i % 64] = 0.0f;
  while (!walk.done(problem)) {
    const int token = walk.token;
    const int tiles = walk.tiles;
    walk.next_token(problem);
    for (int tile = 0; tile < tiles; ++tile) {
      mbarrier_wait(&shared.weighed[turn.buffer], turn.parity);
      if (tile > 0 && shared.rescaled[turn.buffer][warp] != 0) {
        const float* rescale = shared.rescale[turn.buffer] + warp * 16 + lane / 4;
        const float shrink[2] = {rescale[0], rescale[8]};
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i / 64][i % 64] *= shrink[i / 2 % 2];
      }
      const std::uint64_t weights = wgmma_descriptor(shared.weights[turn.buffer]);
      const std::uint64_t values = wgmma_descriptor_transposed(
          shared.keys[turn.buffer] + side * 4 * kPanelBytes, kPanelBytes);
      wgmma_pin(o[0]);
      wgmma_pin(o[1]);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_bf16_transposed(o[0], weights + step * 2, values + step * 2048 / 16,
                              tile > 0 || step > 0);
        wgmma_bf16_transposed(o[1], weights + step * 2,
                              values + (2 * kPanelBytes + step * 2048) / 16, tile > 0 || step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(o[0]);
      wgmma_pin(o[1]);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.free[turn.buffer]);
      turn.next();
    }
    mbarrier_wait(&shared.finished, parity);
    parity ^= 1;
    store_result(problem, shared, token, side, o);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&shared.taken);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

__global__ void __launch_bounds__(kThreads, 1) attend(const __grid_constant__ Problem problem) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  Shared& shared =
      *reinterpret_cast<Shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int part = 0; part < kParts; ++part) mbarrier_init(&shared.full[buffer][part], 4);
      mbarrier_init(&shared.free[buffer], 8);
      mbarrier_init(&shared.weighed[buffer], 4);
    }
    mbarrier_init(&shared.finished, 4);
    mbarrier_init(&shared.taken, 8);
    mbarrier_init_fence();
  }
  __syncthreads();
  const int group = threadIdx.x / kGroup;
  if (group == 0) {
    give_registers<96>();
    gather_rows(problem, shared);
  } else if (group == 1) {
    give_registers<96>();
    weigh_scores(problem, shared);
  } else {
    take_registers<160>();
    sum_values(problem, shared, group - 2);
  }
#endif
}

constexpr int kSharedBytes = static_cast<int>(sizeof(Shared)) + 1024;

}  // namespace

cudaError_t launch_hopper(const Problem& problem, cudaStream_t stream) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  int units = 0;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess)
    return error;
  if (const cudaError_t error =
          cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
      error != cudaSuccess)
    return error;
  attend<<<static_cast<unsigned>(std::min(problem.tokens, units)), kThreads, kSharedBytes,
           stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace deepinfer::kernels::sparse_mla
