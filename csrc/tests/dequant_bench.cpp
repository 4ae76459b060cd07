// csrc/tests/dequant_bench.cpp — bandwidth of the dequantizer on one core beside memcpy's.
// Both count bytes read plus bytes written, best of the runs in one repeat; the copy moves as many
// bytes in all as the op. Output is 256 MB, far above any L3. Not a test: nothing passes or fails.
//   dequant_bench [repeats]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/dequant/op.h"

namespace {

namespace dq = deepinfer::kernels::dequant;

constexpr std::size_t kRows = 16384, kCols = 8192;  // 256 MB of bf16
constexpr std::size_t kElements = kRows * kCols;
constexpr int kRuns = 7;

struct Free {
  void operator()(std::uint8_t* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::uint8_t, Free>;

Buffer filled(std::size_t bytes, int value) {
  Buffer buffer(static_cast<std::uint8_t*>(std::aligned_alloc(64, bytes)));
  if (!buffer) std::abort();
  std::memset(buffer.get(), value, bytes);
  return buffer;
}

template <typename Work>
double seconds(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Op and copy take turns, so that both see the same neighbours and the same clock.
template <typename Work>
void report(const char* op, const char* variant, std::size_t bytes, Work work) {
  const Buffer from = filled(bytes / 2, 1), to = filled(bytes / 2, 2);
  double ours = 1e9, copy = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    ours = std::min(ours, seconds(work));
    copy = std::min(copy, seconds([&] { std::memcpy(to.get(), from.get(), bytes / 2); }));
  }
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  std::printf("%-22s %-9s %6.2f GB/s  memcpy %6.2f GB/s  ratio %.2f\n", op, variant,
              gigabytes / ours, gigabytes / copy, copy / ours);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 3;
  const Buffer weight = filled(kElements, 0x35), scale = filled(kElements / 32, 120);
  const Buffer out = filled(kElements * 2 + 64, 0);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (const dq::Variant* with : dq::variants()) {
      for (const std::size_t offset : {0u, 16u}) {
        const dq::Fp8Block fp8{
            weight.get(), scale.get(), out.get() + offset, dq::OutType::kBf16, kRows, kCols, 32};
        const dq::Fp4Row fp4{weight.get(),       scale.get(), out.get() + offset,
                             dq::OutType::kBf16, kRows,       kCols};
        report(offset == 0 ? "fp8 -> bf16" : "fp8 -> bf16 (out+16)", with->name,
               kElements * 3 + kElements / 1024, [&] { dq::cpu(fp8, 1, *with); });
        report(offset == 0 ? "fp4 -> bf16" : "fp4 -> bf16 (out+16)", with->name,
               kElements * 5 / 2 + kElements / 32, [&] { dq::cpu(fp4, 1, *with); });
      }
    }
  }
  return 0;
}
