// csrc/kernels/sparse_mla/cuda/sparse_mla.cu — see sparse_mla.h: refuses what the contract does not
// allow, and chooses the kernel.
#include <climits>

#include "kernels/sparse_mla/cuda/problem.cuh"
#include "kernels/sparse_mla/cuda/sparse_mla.h"

namespace deepinfer::kernels::sparse_mla {
namespace {

constexpr std::int64_t kMost = INT_MAX / 2;  // slots and tokens are counted in 32 bits

bool usable(const void* pointer, bool needed) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && (pointer != nullptr || !needed);
}

bool in_range(std::int64_t size) { return size >= 0 && size <= kMost; }

bool is_hopper() {
  int device = 0;
  int major = 0;
  int minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

int launch(const void* query, const void* window, const void* window_rows, const void* entries,
           const void* entry_rows, const void* counts, const void* sink, const void* rotation,
           void* out, std::int64_t tokens, std::int64_t window_pool, std::int64_t window_slots,
           std::int64_t entry_pool, std::int64_t entry_slots, bool portable, void* stream) {
  if (!in_range(tokens) || !in_range(window_slots) || !in_range(entry_slots) || window_pool < 0 ||
      entry_pool < 0)
    return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  const bool window_seen = window_slots > 0;
  const bool entries_seen = entry_slots > 0;
  if (!usable(query, true) || !usable(window, window_seen && window_pool > 0) ||
      !usable(window_rows, window_seen) || !usable(entries, entries_seen && entry_pool > 0) ||
      !usable(entry_rows, entries_seen) || !usable(counts, true) || !usable(sink, true) ||
      !usable(rotation, true) || !usable(out, true))
    return cudaErrorInvalidValue;
  const Problem problem{static_cast<const __nv_bfloat16*>(query),
                        static_cast<const std::uint8_t*>(window),
                        static_cast<const std::int32_t*>(window_rows),
                        static_cast<const std::uint8_t*>(entries),
                        static_cast<const std::int32_t*>(entry_rows),
                        static_cast<const int2*>(counts),
                        static_cast<const float*>(sink),
                        static_cast<const float*>(rotation),
                        static_cast<__nv_bfloat16*>(out),
                        window_pool,
                        entry_pool,
                        static_cast<int>(tokens),
                        static_cast<int>(window_slots),
                        static_cast<int>(entry_slots)};
  const auto on = static_cast<cudaStream_t>(stream);
  return !portable && is_hopper() ? launch_hopper(problem, on) : launch_portable(problem, on);
}

}  // namespace
}  // namespace deepinfer::kernels::sparse_mla

extern "C" {

int deepinfer_cuda_sparse_mla(const void* query, const void* window, const void* window_rows,
                              const void* entries, const void* entry_rows, const void* counts,
                              const void* sink, const void* rotation, void* out,
                              std::int64_t tokens, std::int64_t window_pool,
                              std::int64_t window_slots, std::int64_t entry_pool,
                              std::int64_t entry_slots, void* stream) {
  return deepinfer::kernels::sparse_mla::launch(
      query, window, window_rows, entries, entry_rows, counts, sink, rotation, out, tokens,
      window_pool, window_slots, entry_pool, entry_slots, false, stream);
}

int deepinfer_cuda_sparse_mla_portable(const void* query, const void* window,
                                       const void* window_rows, const void* entries,
                                       const void* entry_rows, const void* counts, const void* sink,
                                       const void* rotation, void* out, std::int64_t tokens,
                                       std::int64_t window_pool, std::int64_t window_slots,
                                       std::int64_t entry_pool, std::int64_t entry_slots,
                                       void* stream) {
  return deepinfer::kernels::sparse_mla::launch(
      query, window, window_rows, entries, entry_rows, counts, sink, rotation, out, tokens,
      window_pool, window_slots, entry_pool, entry_slots, true, stream);
}

}  // extern "C"
