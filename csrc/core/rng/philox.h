// csrc/core/rng/philox.h — Philox4x32-10, the counter-based generator behind every random choice.
// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC11).
// No state: equal counters and keys give equal words on every device, whatever the batch.
#pragma once
#include <array>
#include <cstdint>

namespace deepinfer::rng {

using Counter = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;
using Words = std::array<std::uint32_t, 4>;

constexpr Words philox4x32_10(Counter counter, Key key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// What a draw is for. Draws of different uses at one position are independent. Values are part of
// what a seed means: never renumber, only append.
enum class Use : std::uint32_t {
  kSample = 0,         // the token at this position
  kDraftSample = 1,    // a draft's proposal for this position
  kDraftAccept = 2,    // whether that proposal stands
  kDraftResample = 3,  // the token where it does not
};

// Words `4 * group .. 4 * group + 3` of the stream of (seed, absolute position, use): the seed is
// the key, and the counter is {group, use, position low, position high}.
constexpr Words words_at(std::uint64_t seed, std::uint64_t position, Use use,
                         std::uint32_t group = 0) {
  const Counter counter = {group, static_cast<std::uint32_t>(use),
                           static_cast<std::uint32_t>(position),
                           static_cast<std::uint32_t>(position >> 32)};
  return philox4x32_10(counter,
                       {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// Uniform in [0, 1): the upper 24 bits in steps of 2^-24, so exact in fp32 and never 1.
constexpr float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace deepinfer::rng
