// csrc/kernels/engram/cuda/gather.cu — hashing and table rows; see engram.h.
//
// From host memory the gather is bound by the bus: few warps with several rows in flight are
// enough, and the multiprocessors that they leave alone go on with other work.
#include <algorithm>

#include "kernels/engram/cuda/engram.h"
#include "kernels/quantize_rows/cuda/chunk.cuh"

namespace {

using deepinfer::kernels::rows::kAllLanes;
using deepinfer::kernels::rows::kWarp;
using deepinfer::kernels::rows::usable;

constexpr int kThreads = 128;
constexpr int kInFlight = 4;
constexpr int kMaxBack = 8;  // tokens that one row may see
constexpr std::int64_t kManyRows = 16384;
constexpr std::int64_t kUnlimited = 0x7FFFFFFF;

struct Hash {
  std::int64_t tokens;
  std::int64_t pad;
  int sizes;
  int heads;
};

// A warp a token, a lane a head of one size.
__global__ void __launch_bounds__(kThreads)
    hash_rows(const std::int64_t* __restrict__ ids, const std::uint8_t* __restrict__ dead,
              const std::int64_t* __restrict__ places, const std::int64_t* __restrict__ factors,
              const std::int64_t* __restrict__ primes, std::int64_t* __restrict__ rows,
              Hash shape) {
  const std::int64_t token =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  if (token >= shape.tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, count = shape.sizes * shape.heads;
  const std::int64_t prime = lane < count ? primes[lane] : 0;
  std::int64_t before = prime;  // the primes up to and with this one
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const std::int64_t other = __shfl_up_sync(kAllLanes, before, distance);
    if (lane >= distance) before += other;
  }
  const std::int64_t place = places[token];
  const int back = lane / shape.heads + 1;  // the oldest token that this lane's size sees
  std::int64_t id[kMaxBack];
  bool ends[kMaxBack];
#pragma unroll
  for (int i = 0; i < kMaxBack; ++i) {  // all loads before the first use
    const bool there = i <= shape.sizes && place >= i;
    ends[i] = there ? dead[place - i] != 0 : true;
    id[i] = there ? ids[place - i] : 0;
  }
  bool alive = true;
  std::uint64_t mixed = 0;
#pragma unroll
  for (int i = 0; i < kMaxBack; ++i) {
    alive = alive && !ends[i];
    const auto seen = static_cast<std::uint64_t>(alive ? id[i] : shape.pad);
    if (i <= shape.sizes && i <= back) mixed ^= seen * static_cast<std::uint64_t>(factors[i]);
  }
  if (lane < count) {
    const std::uint64_t row = mixed % static_cast<std::uint64_t>(prime);
    rows[token * count + lane] = static_cast<std::int64_t>(row) + before - prime;
  }
}

struct Table {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int64_t rows;
  std::int64_t row_stride;
  std::int64_t scale_stride;
};

// `lanes` threads a row, 16 bytes each; the first of them also take a scale each. Rows are read
// past the L1 cache, which would hold on to lines that nobody reads again.
__global__ void __launch_bounds__(kThreads)
    gather(Table table, const std::int64_t* __restrict__ rows, uint4* __restrict__ codes,
           std::uint8_t* __restrict__ scales, std::int64_t count, int lanes) {
  const int part = static_cast<int>(threadIdx.x) % lanes, per_block = kThreads / lanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * per_block;
  const std::int64_t begin =
      static_cast<std::int64_t>(blockIdx.x) * per_block + threadIdx.x / lanes;
  for (std::int64_t first = begin; first < count; first += kInFlight * step) {
    uint4 found[kInFlight];
    std::uint8_t factor[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const std::int64_t place = first + k * step;
      const std::int64_t row = place < count ? rows[place] : -1;
      const bool here = row >= 0 && row < table.rows;
      found[k] = make_uint4(0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu);
      factor[k] = 0xFF;
      if (!here) continue;
      found[k] =
          __ldcs(reinterpret_cast<const uint4*>(table.codes + row * table.row_stride) + part);
      if (part < lanes / 2) factor[k] = __ldcs(table.scales + row * table.scale_stride + part);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const std::int64_t place = first + k * step;
      if (place >= count) break;
      codes[place * lanes + part] = found[k];
      if (part < lanes / 2) scales[place * (lanes / 2) + part] = factor[k];
    }
  }
}

}  // namespace

extern "C" {

int deepinfer_cuda_engram_rows(const void* ids, const void* dead, const void* places,
                               const void* factors, const void* primes, void* rows,
                               std::int64_t tokens, std::int64_t count, std::int64_t sizes,
                               std::int64_t heads, std::int64_t pad, void* stream) {
  if (tokens < 0 || tokens > kUnlimited || count < 0 || sizes < 1 || sizes > 7 || heads < 1 ||
      sizes * heads > kWarp || pad < 0)
    return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(ids, dead, places, factors, primes, rows)) return cudaErrorInvalidValue;
  const Hash shape{tokens, pad, static_cast<int>(sizes), static_cast<int>(heads)};
  constexpr int kPerBlock = kThreads / kWarp;
  hash_rows<<<static_cast<unsigned>((tokens + kPerBlock - 1) / kPerBlock), kThreads, 0,
              static_cast<cudaStream_t>(stream)>>>(
      static_cast<const std::int64_t*>(ids), static_cast<const std::uint8_t*>(dead),
      static_cast<const std::int64_t*>(places), static_cast<const std::int64_t*>(factors),
      static_cast<const std::int64_t*>(primes), static_cast<std::int64_t*>(rows), shape);
  return cudaGetLastError();
}

int deepinfer_cuda_engram_gather(const void* rows, const void* table, const void* scale,
                                 void* codes, void* scales, std::int64_t tokens,
                                 std::int64_t per_token, std::int64_t width,
                                 std::int64_t table_rows, std::int64_t row_stride,
                                 std::int64_t scale_stride, std::int64_t blocks, void* stream) {
  const std::int64_t lanes = width / 16;
  if (tokens < 0 || per_token < 1 || tokens > kUnlimited / per_token || width <= 0 ||
      width % 32 != 0 || width > 512 || kThreads % lanes != 0 || table_rows < 1 ||
      row_stride < width || row_stride % 16 != 0 || scale_stride < width / 32 || blocks < 0)
    return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  if (!usable(table, rows, codes, scales) || scale == nullptr) return cudaErrorInvalidValue;
  const std::int64_t count = tokens * per_token, per_block = kThreads / lanes;
  const std::int64_t limit = blocks == 0 ? kUnlimited : blocks;
  // Few rows spread over many warps; of many, each thread has several in flight.
  const std::int64_t each = count > kManyRows ? kInFlight * per_block : per_block;
  const std::int64_t grid = std::min(limit, (count + each - 1) / each);
  const Table from{static_cast<const std::uint8_t*>(table), static_cast<const std::uint8_t*>(scale),
                   table_rows, row_stride, scale_stride};
  gather<<<static_cast<unsigned>(grid), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      from, static_cast<const std::int64_t*>(rows), static_cast<uint4*>(codes),
      static_cast<std::uint8_t*>(scales), count, static_cast<int>(lanes));
  return cudaGetLastError();
}

}  // extern "C"
