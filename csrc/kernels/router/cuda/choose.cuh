// csrc/kernels/router/cuda/choose.cuh — from logits to experts and weights, one warp a token; and
// the rows of each expert, one block for eight experts. No atomics: every place is counted out.
#pragma once
#include <cstdint>

#include "kernels/hopper/dependent_launch.cuh"

namespace deepinfer::kernels::router {

constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr int kChooseWarps = 4;

struct Choice {
  const float* work;
  const float* bias;
  const float* image_bias;
  const std::uint8_t* image;
  std::int32_t* ids;
  float* weights;
  int tokens;
  int experts;
  int k;
  int parts;
  float scaling;
};

__device__ __forceinline__ float score_of(float logit) {
  return sqrtf(logit > 20.0f ? logit : log1pf(expf(logit)));
}

// The greater value has the greater key; -0 and +0 have one, NaN has that of -infinity. Above 0.
__device__ __forceinline__ std::uint32_t rank_of(float value) {
  const std::uint32_t bits = __float_as_uint(fmaxf(value, -INFINITY) + 0.0f);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

// kOwn: experts of a lane, lane, lane + 32, ...
template <int kOwn>
__global__ void __launch_bounds__(32 * kChooseWarps) choose(const Choice c) {
  hopper::allow_dependent_launch();
  hopper::wait_for_kernels_ahead();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int token = static_cast<int>(blockIdx.x * kChooseWarps + threadIdx.x / 32);
  if (token >= c.tokens) return;
  const bool is_image = c.image != nullptr && c.image[token] != 0;
  const float* bias = is_image ? c.image_bias : c.bias;
  float score[kOwn] = {};
  std::uint32_t rank[kOwn];
#pragma unroll 4  // so many parts' loads under way at once; added in their order
  for (int part = 0; part < c.parts; ++part) {
    const float* from = c.work + (static_cast<std::int64_t>(part) * c.tokens + token) * c.experts;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int expert = 32 * j + lane;
      if (expert < c.experts) score[j] += from[expert];
    }
  }
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int expert = 32 * j + lane;
    score[j] = score_of(score[j]);
    rank[j] = expert < c.experts ? rank_of(score[j] + bias[expert]) : 0;
  }
  float sum = 0.0f, own_score = 0.0f;  // lane s has choice s
  int own_id = 0;
  for (int s = 0; s < c.k; ++s) {
    std::uint32_t best = 0;
    int id = c.experts;
#pragma unroll
    for (int j = kOwn - 1; j >= 0; --j) {  // so that the lowest of equals comes last
      if (rank[j] < best) continue;
      best = rank[j];
      id = 32 * j + lane;
    }
    const std::uint32_t top = __reduce_max_sync(kAllLanes, best);
    id = static_cast<int>(
        __reduce_min_sync(kAllLanes, best == top ? static_cast<std::uint32_t>(id) : kAllLanes));
    float taken = 0.0f;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (32 * j + lane != id) continue;
      taken = score[j];
      rank[j] = 0;
    }
    taken = __shfl_sync(kAllLanes, taken, id % 32);
    sum += taken;
    if (lane != s) continue;
    own_score = taken;
    own_id = id;
  }
  if (lane >= c.k) return;
  const std::int64_t at = static_cast<std::int64_t>(token) * c.k + lane;
  c.ids[at] = own_id;
  c.weights[at] = own_score / (sum + 1e-20f) * c.scaling;
}

struct Sorting {
  const std::int32_t* ids;
  std::int32_t* offsets;
  std::int32_t* order;
  int rows;
  int first;
  int count;
};

constexpr int kSortWarps = 32;
constexpr int kSortExperts = 8;  // of a block
constexpr int kBatch = 8;        // loads of a lane under way at once

// Calls see(row, expert - first of the block, or something else) for every row of a warp's share.
template <typename See>
__device__ __forceinline__ void each_row(const Sorting& s, int from, See see) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int share = (s.rows + 32 * kSortWarps - 1) / (32 * kSortWarps) * 32;
  const int begin = min(s.rows, warp * share), end = min(s.rows, begin + share);
  for (int at = begin; at < end; at += 32 * kBatch) {
    int id[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int row = at + 32 * b + lane;
      id[b] = row < end ? s.ids[row] - s.first : -1;
      if (id[b] >= s.count || id[b] < 0) id[b] = -(1 << 30);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) see(at + 32 * b + lane, id[b] - from);
  }
}

// Lane 0..7 of every warp counts an expert of the block, lane 8 the rows of lower experts.
__global__ void __launch_bounds__(32 * kSortWarps) sort_rows(const Sorting s) {
  __shared__ int counts[kSortWarps][kSortExperts + 1];
  hopper::wait_for_kernels_ahead();
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int from = static_cast<int>(blockIdx.x) * kSortExperts;
  int lower = 0, found[kSortExperts] = {};
  each_row(s, from, [&](int, int expert) {
    lower += __popc(__ballot_sync(kAllLanes, expert < 0 && expert >= -from));
    if (__ballot_sync(kAllLanes, expert >= 0 && expert < kSortExperts) == 0) return;
#pragma unroll
    for (int e = 0; e < kSortExperts; ++e)
      found[e] += __popc(__ballot_sync(kAllLanes, expert == e));
  });
  if (lane == 0) {
#pragma unroll
    for (int e = 0; e < kSortExperts; ++e) counts[warp][e] = found[e];
    counts[warp][kSortExperts] = lower;
  }
  __syncthreads();
  int before = 0, total = 0;
  if (lane <= kSortExperts) {
#pragma unroll
    for (int w = 0; w < kSortWarps; ++w) {
      before += w < warp ? counts[w][lane] : 0;
      total += counts[w][lane];
    }
  }
  int start = __shfl_sync(kAllLanes, total, kSortExperts);  // of the block's first expert
  int next[kSortExperts];
#pragma unroll
  for (int e = 0; e < kSortExperts; ++e) {
    next[e] = start + __shfl_sync(kAllLanes, before, e);
    if (warp == 0 && lane == 0 && from + e < s.count) s.offsets[from + e] = start;
    start += __shfl_sync(kAllLanes, total, e);
  }
  each_row(s, from, [&](int row, int expert) {
    if (__ballot_sync(kAllLanes, expert >= 0 && expert < kSortExperts) == 0) return;
#pragma unroll
    for (int e = 0; e < kSortExperts; ++e) {
      const std::uint32_t same = __ballot_sync(kAllLanes, expert == e);
      if (expert == e) s.order[next[e] + __popc(same & ((1u << lane) - 1))] = row;
      next[e] += __popc(same);
    }
  });
  if (blockIdx.x + 1 != gridDim.x) return;
  if (threadIdx.x == 0) s.offsets[s.count] = start;
  for (int i = start + static_cast<int>(threadIdx.x); i < s.rows; i += 32 * kSortWarps)
    s.order[i] = -1;
}

}  // namespace deepinfer::kernels::router
