// csrc/tests/check.h — the one assertion of the tests, and their summary.
// A test is a program: it counts what it checks, prints the first failures and exits with 1.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace deepinfer::tests {

struct Tally {
  std::uint64_t checked = 0;
  std::uint64_t failed = 0;
};

inline Tally& tally() {
  static Tally one;
  return one;
}

inline void failed(const char* file, int line, const std::string& message) {
  constexpr std::uint64_t kShown = 20;
  if (++tally().failed <= kShown) std::fprintf(stderr, "%s:%d: %s\n", file, line, message.c_str());
}

inline void not_run(const char* what, const char* why) {
  std::printf("not run: %s: %s\n", what, why);
}

// Subnormals read and written as zero for the length of a scope, as -ffast-math libraries set it.
// Does nothing on other machines than x86.
class FlushToZero {
 public:
#ifdef __SSE2__
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  FlushToZero() {}
  ~FlushToZero() {}
#endif
};

inline int summary(const char* name) {
  std::printf("%s: %llu checked, %llu failed\n", name,
              static_cast<unsigned long long>(tally().checked),
              static_cast<unsigned long long>(tally().failed));
  return tally().failed == 0 && tally().checked > 0 ? 0 : 1;
}

}  // namespace deepinfer::tests

// `message` is a std::string, built only on failure.
#define CHECK(condition, message)                                            \
  do {                                                                       \
    ++deepinfer::tests::tally().checked;                                     \
    if (!(condition)) deepinfer::tests::failed(__FILE__, __LINE__, message); \
  } while (false)
