// csrc/tests/philox_test.cpp — the published answers of Random123, and the mapping built on them.
#include "core/rng/philox.h"

#include <cstdint>
#include <set>
#include <string>

#include "check.h"

namespace deepinfer::tests {
namespace {

using rng::Use;
using rng::Words;

void answers_are_the_published_ones() {
  constexpr std::uint32_t kOnes = 0xFFFFFFFFu;
  CHECK((rng::philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
         Words{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}),
        "zeros");
  CHECK((rng::philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
         Words{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}),
        "ones");
  CHECK((rng::philox4x32_10({0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u},
                            {0xA4093822u, 0x299F31D0u}) ==
         Words{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}),
        "digits of pi");
}

void position_seed_use_and_group_each_change_the_words() {
  std::set<Words> seen;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32}) {
    for (const std::uint64_t position : {0ull, 1ull, 1ull << 32}) {
      for (const Use use : {Use::kSample, Use::kDraftSample}) {
        for (const std::uint32_t group : {0u, 1u}) {
          seen.insert(rng::words_at(seed, position, use, group));
        }
      }
    }
  }
  CHECK(seen.size() == 3 * 3 * 2 * 2, "only " + std::to_string(seen.size()) + " are different");
  CHECK(rng::words_at(0, 0, Use::kSample) == rng::philox4x32_10({0, 0, 0, 0}, {0, 0}), "origin");
}

void uniform_is_below_one_and_exact() {
  CHECK(rng::uniform(0) == 0.0f, "0");
  CHECK(rng::uniform(0xFFu) == 0.0f, "the lower 8 bits do not count");
  CHECK(rng::uniform(0x100u) == 0x1p-24f, "one step");
  CHECK(rng::uniform(0x80000000u) == 0.5f, "half");
  CHECK(rng::uniform(0xFFFFFFFFu) == 1.0f - 0x1p-24f, "the largest");
}

}  // namespace
}  // namespace deepinfer::tests

int main() {
  using namespace deepinfer::tests;
  answers_are_the_published_ones();
  position_seed_use_and_group_each_change_the_words();
  uniform_is_below_one_and_exact();
  return summary("philox");
}
