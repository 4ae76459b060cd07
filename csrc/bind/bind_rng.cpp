// csrc/bind/bind_rng.cpp — Philox words for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <tuple>

#include "bind/topics.h"
#include "core/rng/philox.h"

namespace deepinfer::bind {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using FourWords = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
using TwoWords = std::tuple<std::uint32_t, std::uint32_t>;

FourWords philox(FourWords counter, TwoWords key) {
  const auto [c0, c1, c2, c3] = counter;
  const auto [k0, k1] = key;
  const rng::Words words = rng::philox4x32_10({c0, c1, c2, c3}, {k0, k1});
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace

void bind_rng(nb::module_& m) {
  m.def("philox4x32_10", &philox, "counter"_a, "key"_a,
        "Four words of 32 bits of the counter and the key; equal on every device.");
}

}  // namespace deepinfer::bind
