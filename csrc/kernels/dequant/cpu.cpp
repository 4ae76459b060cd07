// csrc/kernels/dequant/cpu.cpp — what the CPU variants share: the search for NaN, the split over
// threads, and the choice of variant at run time.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "core/formats/e4m3.h"
#include "core/formats/e8m0.h"
#include "kernels/dequant/op.h"

namespace deepinfer::kernels::dequant {
namespace {

using Kind = Status::Kind;

constexpr int kMaxThreads = 64;
// Outputs from here on are written past the caches: nobody reads them back from there.
constexpr std::size_t kStreamBytes = std::size_t{32} << 20;
// A thread is not worth its start for fewer elements.
constexpr std::size_t kElementsPerThread = std::size_t{1} << 18;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Calls work(piece, first, last) for at most `threads` pieces of [0, count), the last piece on this
// thread. Where the system gives no thread, its piece runs here too.
template <typename Work>
void split(std::size_t count, int threads, Work work) {
  std::array<std::thread, kMaxThreads> started;
  const auto pieces = static_cast<std::size_t>(threads);
  const auto bound = [&](std::size_t piece) {
    return count / pieces * piece + std::min(piece, count % pieces);
  };
  for (std::size_t piece = 0; piece + 1 < pieces; ++piece) {
    try {
      started[piece] = std::thread(work, piece, bound(piece), bound(piece + 1));
    } catch (const std::system_error&) {
      work(piece, bound(piece), bound(piece + 1));
    }
  }
  work(pieces - 1, bound(pieces - 1), count);
  for (std::thread& thread : started) {
    if (thread.joinable()) thread.join();
  }
}

int useful_threads(std::size_t elements, std::size_t rows, int threads) {
  const std::size_t useful = std::min(rows, elements / kElementsPerThread);
  const auto asked = static_cast<std::size_t>(std::clamp(threads, 1, kMaxThreads));
  return static_cast<int>(std::clamp<std::size_t>(useful, 1, asked));
}

std::size_t first_nan_scale(const std::uint8_t* scale, std::size_t count) {
  const void* found = std::memchr(scale, formats::kE8m0Nan, count);
  if (found == nullptr) return kNone;
  return static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - scale);
}

std::size_t first_nan_weight(const std::uint8_t* weight, std::size_t first, std::size_t last,
                             const Variant& with) {
  constexpr std::size_t kStep = 16384;  // stays in L1 for the second look
  for (; first < last; first += kStep) {
    const std::size_t count = std::min(kStep, last - first);
    if (!with.has_e4m3_nan(weight + first, count)) continue;
    for (std::size_t i = first; i < first + count; ++i) {
      if (formats::e4m3_is_nan(weight[i])) return i;
    }
  }
  return kNone;
}

std::size_t first_nan_weight(const std::uint8_t* weight, std::size_t count, int threads,
                             const Variant& with) {
  std::array<std::size_t, kMaxThreads> found;
  found.fill(kNone);
  split(count, threads, [&](std::size_t piece, std::size_t first, std::size_t last) {
    found[piece] = first_nan_weight(weight, first, last, with);
  });
  return *std::min_element(found.begin(), found.end());
}

bool worth_streaming(OutType type, std::size_t elements) {
  return elements * (type == OutType::kBf16 ? 2 : 4) >= kStreamBytes;
}

// `blocks` blocks from element `at` of the output on.
void fp8_run(const Variant& with, const Fp8Block& op, const std::uint8_t* scales, std::size_t at,
             std::size_t blocks, bool stream) {
  if (op.out_type == OutType::kBf16) {
    with.fp8_to_bf16(op.weight + at, scales, static_cast<std::uint16_t*>(op.out) + at, blocks,
                     stream);
  } else {
    with.fp8_to_fp32(op.weight + at, scales, static_cast<float*>(op.out) + at, blocks, stream);
  }
}

void fp4_run(const Variant& with, const Fp4Row& op, const std::uint8_t* scales, std::size_t at,
             std::size_t blocks, bool stream) {
  const std::uint8_t* codes = op.weight + at / 2;
  if (op.out_type == OutType::kBf16) {
    with.fp4_to_bf16(codes, scales, static_cast<std::uint16_t*>(op.out) + at, blocks, stream);
  } else {
    with.fp4_to_fp32(codes, scales, static_cast<float*>(op.out) + at, blocks, stream);
  }
}

std::atomic<const Variant*> chosen{nullptr};

}  // namespace

std::span<const Variant* const> variants() {
#ifdef DEEPINFER_X86
  static const Variant* const all[] = {&kAvx512, &kAvx2, &kPortable};
  static const std::size_t skip = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return 0;
    return __builtin_cpu_supports("avx2") ? 1 : 2;
  }();
  return std::span(all).subspan(skip);
#else
  static const Variant* const all[] = {&kPortable};
  return all;
#endif
}

const Variant& variant() {
  const Variant* now = chosen.load(std::memory_order_relaxed);
  return now != nullptr ? *now : *variants().front();
}

bool use_variant(const char* name) {
  if (std::strcmp(name, "auto") == 0) {
    chosen = nullptr;
    return true;
  }
  for (const Variant* one : variants()) {
    if (std::strcmp(name, one->name) != 0) continue;
    chosen = one;
    return true;
  }
  return false;
}

Status cpu(const Fp8Block& op, int threads) { return cpu(op, threads, variant()); }
Status cpu(const Fp4Row& op, int threads) { return cpu(op, threads, variant()); }

Status cpu(const Fp8Block& op, int threads, const Variant& with) {
  const std::size_t elements = op.rows * op.cols;
  if (elements == 0) return {};
  const std::size_t scale_cols = op.cols / kBlockCols;
  const std::size_t scale_rows = (op.rows + op.block_rows - 1) / op.block_rows;
  threads = useful_threads(elements, op.rows, threads);
  if (const auto i = first_nan_scale(op.scale, scale_rows * scale_cols); i != kNone) {
    return {Kind::kScaleIsNan, i / scale_cols, i % scale_cols};
  }
  if (const auto i = first_nan_weight(op.weight, elements, threads, with); i != kNone) {
    return {Kind::kWeightIsNan, i / op.cols, i % op.cols};
  }
  const bool stream = worth_streaming(op.out_type, elements);
  split(op.rows, threads, [&](std::size_t, std::size_t first, std::size_t last) {
    // With one scale row per row, rows follow each other without a seam.
    const std::size_t step = op.block_rows == 1 ? last - first : 1;
    for (std::size_t row = first; row < last; row += step) {
      fp8_run(with, op, op.scale + row / op.block_rows * scale_cols, row * op.cols,
              step * scale_cols, stream);
    }
    if (stream) with.finish_stream();
  });
  return {};
}

Status cpu(const Fp4Row& op, int threads, const Variant& with) {
  const std::size_t elements = op.rows * op.cols;
  if (elements == 0) return {};
  const std::size_t scale_cols = op.cols / kBlockCols;
  threads = useful_threads(elements, op.rows, threads);
  if (const auto i = first_nan_scale(op.scale, op.rows * scale_cols); i != kNone) {
    return {Kind::kScaleIsNan, i / scale_cols, i % scale_cols};
  }
  const bool stream = worth_streaming(op.out_type, elements);
  split(op.rows, threads, [&](std::size_t, std::size_t first, std::size_t last) {
    fp4_run(with, op, op.scale + first * scale_cols, first * op.cols, (last - first) * scale_cols,
            stream);
    if (stream) with.finish_stream();
  });
  return {};
}

}  // namespace deepinfer::kernels::dequant
