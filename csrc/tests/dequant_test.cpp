// csrc/tests/dequant_test.cpp — every (code, scale) pair through the reference and through every
// variant that this machine has, the places of NaN, shapes, threads, alignment and streaming.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "definitions.h"
#include "kernels/dequant/op.h"

namespace deepinfer::tests {
namespace {

namespace dq = kernels::dequant;
using dq::Fp4Row;
using dq::Fp8Block;
using dq::OutType;
using dq::Status;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kScales = 255;  // all but NaN
constexpr OutType kTypes[] = {OutType::kBf16, OutType::kFp32};

std::size_t width(OutType type) { return type == OutType::kBf16 ? 2 : 4; }

// One row per scale, one column per code; the two NaN codes are replaced by zeros.
Bytes every_fp8_code() {
  Bytes weight;
  for (std::size_t row = 0; row < kScales; ++row) {
    for (int code = 0; code < 256; ++code) {
      weight.push_back(static_cast<std::uint8_t>((code & 127) == 127 ? 0 : code));
    }
  }
  return weight;
}

// One row per scale; each byte value once, so every code is seen in both nibbles: 512 columns.
Bytes every_fp4_code() {
  Bytes weight;
  for (std::size_t row = 0; row < kScales; ++row) {
    for (int byte = 0; byte < 256; ++byte) weight.push_back(static_cast<std::uint8_t>(byte));
  }
  return weight;
}

Bytes every_scale(std::size_t blocks_per_row) {
  Bytes scale;
  for (std::size_t row = 0; row < kScales; ++row) {
    scale.insert(scale.end(), blocks_per_row, static_cast<std::uint8_t>(row));
  }
  return scale;
}

void check_value(const Bytes& out, OutType type, std::size_t index, double value,
                 const std::string& where) {
  if (type == OutType::kFp32) {
    std::uint32_t bits;
    std::memcpy(&bits, &out[index * 4], 4);
    CHECK(bits == fp32_bits(value), where);
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, &out[index * 2], 2);
    CHECK(bits == bf16_bits(value), where);
  }
}

template <typename Run>
void every_fp8_pair(const char* name, Run run) {
  const Bytes weight = every_fp8_code(), scale = every_scale(8);
  for (const OutType type : kTypes) {
    Bytes out(weight.size() * width(type));
    const Fp8Block op{weight.data(), scale.data(), out.data(), type, kScales, 256, 1};
    CHECK(run(op).ok(), std::string(name) + ": refused");
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const auto row = static_cast<int>(i / 256);
      check_value(out, type, i, e4m3_value(weight[i]) * e8m0_value(row),
                  std::string(name) + " fp8 code " + std::to_string(i % 256) + " scale " +
                      std::to_string(row));
    }
  }
}

template <typename Run>
void every_fp4_pair(const char* name, Run run) {
  const Bytes weight = every_fp4_code(), scale = every_scale(16);
  for (const OutType type : kTypes) {
    Bytes out(weight.size() * 2 * width(type));
    const Fp4Row op{weight.data(), scale.data(), out.data(), type, kScales, 512};
    CHECK(run(op).ok(), std::string(name) + ": refused");
    for (std::size_t i = 0; i < weight.size() * 2; ++i) {
      const auto row = static_cast<int>(i / 512);
      const int code = i % 2 == 0 ? weight[i / 2] % 16 : weight[i / 2] / 16;
      check_value(out, type, i, e2m1_value(code) * e8m0_value(row),
                  std::string(name) + " fp4 code " + std::to_string(code) + " scale " +
                      std::to_string(row));
    }
  }
}

// Bytes without pattern and without NaN, the same on every machine.
Bytes noise(std::size_t count, std::uint32_t seed) {
  Bytes bytes(count);
  for (std::uint8_t& byte : bytes) {
    seed = seed * 1664525u + 1013904223u;
    byte = static_cast<std::uint8_t>(seed >> 24);
    if ((byte & 127) == 127) byte = 0x3C;
  }
  return bytes;
}

struct Size {
  std::size_t rows, cols, block_rows;
};

// Output at `offset` bytes into a buffer whose surroundings must stay as they were.
template <typename Op>
void compare_with_reference(Op op, std::size_t offset, int threads, const dq::Variant& with,
                            const std::string& what) {
  constexpr std::size_t kGuard = 128;
  const std::size_t bytes = op.rows * op.cols * width(op.out_type);
  Bytes wanted(bytes + 1), buffer(bytes + 2 * kGuard + offset, 0xA5);
  op.out = wanted.data();
  CHECK(dq::reference(op).ok(), what);
  op.out = buffer.data() + kGuard + offset;
  CHECK(dq::cpu(op, threads, with).ok(), what);
  CHECK(std::memcmp(op.out, wanted.data(), bytes) == 0, what);
  bool clean = true;
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    const bool inside = i >= kGuard + offset && i < kGuard + offset + bytes;
    clean = clean && (inside || buffer[i] == 0xA5);
  }
  CHECK(clean, what + ": wrote outside");
}

void shapes_threads_and_alignment(const dq::Variant& with) {
  constexpr Size kSizes[] = {{0, 64, 32},  {3, 0, 32},     {1, 32, 1},     {1, 32, 32},
                             {33, 96, 32}, {64, 128, 32},  {65, 32, 7},    {31, 64, 100},
                             {64, 288, 1}, {96, 8192, 32}, {1024, 1024, 1}};
  for (const Size& size : kSizes) {
    const std::size_t scale_rows = (size.rows + size.block_rows - 1) / size.block_rows;
    const Bytes weight = noise(size.rows * size.cols + 1, 1);
    const Bytes scale = noise(size.rows * size.cols / 32 + scale_rows * size.cols / 32 + 1, 2);
    const std::string what = std::string(with.name) + " " + std::to_string(size.rows) + " x " +
                             std::to_string(size.cols) + " / " + std::to_string(size.block_rows);
    for (const OutType type : kTypes) {
      for (const std::size_t offset : {0u, 4u, 16u}) {
        for (const int threads : {1, 3}) {
          const Fp8Block fp8{weight.data(), scale.data(), nullptr,        type,
                             size.rows,     size.cols,    size.block_rows};
          compare_with_reference(fp8, offset, threads, with, what + " fp8");
          const Fp4Row fp4{weight.data(), scale.data(), nullptr, type, size.rows, size.cols};
          compare_with_reference(fp4, offset, threads, with, what + " fp4");
        }
      }
    }
  }
}

// Large enough to be written past the caches, at each alignment that has a path of its own.
void streamed_output_is_the_same(const dq::Variant& with) {
  constexpr std::size_t kRows = 4096, kCols = 4128;
  const Bytes weight = noise(kRows * kCols, 3), scale = noise(kRows * kCols / 32, 4);
  for (const std::size_t offset : {0u, 48u, 50u}) {
    compare_with_reference(
        Fp8Block{weight.data(), scale.data(), nullptr, OutType::kBf16, kRows, kCols, 32}, offset, 2,
        with, std::string(with.name) + " streamed fp8");
    compare_with_reference(
        Fp4Row{weight.data(), scale.data(), nullptr, OutType::kBf16, kRows, kCols}, offset, 2, with,
        std::string(with.name) + " streamed fp4");
  }
}

template <typename Run>
void nan_is_refused_with_its_place(const std::string& name, Run run) {
  constexpr std::size_t kRows = 70, kCols = 320;
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{31}, 17 * kCols + 33, kRows * kCols - 1}) {
    for (const std::uint8_t nan : {std::uint8_t{0x7F}, std::uint8_t{0xFF}}) {
      Bytes weight = noise(kRows * kCols, 5), scale = noise(3 * kCols / 32, 6);
      Bytes out(kRows * kCols * 2, 0xA5);
      const Fp8Block op{weight.data(), scale.data(), out.data(), OutType::kBf16, kRows, kCols, 32};
      weight[at] = nan;
      Status status = run(op);
      CHECK(status.kind == Status::Kind::kWeightIsNan, name);
      CHECK(status.row == at / kCols && status.column == at % kCols, name + ": place");
      scale[13] = 255;
      status = run(op);
      CHECK(status.kind == Status::Kind::kScaleIsNan, name);
      CHECK(status.row == 1 && status.column == 3, name + ": place of the scale");
      CHECK(out == Bytes(out.size(), 0xA5), name + ": something was written");
    }
  }
}

template <typename Run>
void nan_scale_of_fp4_is_refused(const std::string& name, Run run) {
  Bytes weight = noise(4 * 48, 7), scale = noise(4 * 3, 8), out(4 * 96 * 4, 0xA5);
  scale[7] = 255;
  scale[11] = 255;
  const Status status = run(Fp4Row{weight.data(), scale.data(), out.data(), OutType::kFp32, 4, 96});
  CHECK(status.kind == Status::Kind::kScaleIsNan && status.row == 2 && status.column == 1, name);
  CHECK(out == Bytes(out.size(), 0xA5), name + ": something was written");
}

// The search for NaN takes wide steps: a NaN at every place of every length of tail.
void nan_is_found_anywhere(const dq::Variant& with) {
  for (std::size_t count = 0; count < 200; ++count) {
    Bytes codes = noise(count + 64, 9);
    CHECK(!with.has_e4m3_nan(codes.data(), count), with.name);
    codes[count] = 0x7F;  // just behind
    CHECK(!with.has_e4m3_nan(codes.data(), count), with.name);
    for (std::size_t at = 0; at < count; ++at) {
      const std::uint8_t before = codes[at];
      codes[at] = at % 2 == 0 ? 0x7F : 0xFF;
      CHECK(with.has_e4m3_nan(codes.data(), count), with.name);
      codes[at] = before;
    }
  }
}

void all_of(const dq::Variant& with) {
  const auto run = [&](const auto& op) { return dq::cpu(op, 1, with); };
  const auto run_on_three = [&](const auto& op) { return dq::cpu(op, 3, with); };
  every_fp8_pair(with.name, run);
  every_fp4_pair(with.name, run);
  const auto run_flushing = [&](const auto& op) {
    const FlushToZero mode;
    return dq::cpu(op, 1, with);
  };
  every_fp8_pair((std::string(with.name) + ", flush to zero:").c_str(), run_flushing);
  every_fp4_pair((std::string(with.name) + ", flush to zero:").c_str(), run_flushing);
  shapes_threads_and_alignment(with);
  streamed_output_is_the_same(with);
  nan_is_found_anywhere(with);
  nan_is_refused_with_its_place(with.name, run);
  nan_is_refused_with_its_place(with.name, run_on_three);
  nan_scale_of_fp4_is_refused(with.name, run);
}

void variants_can_be_chosen() {
  CHECK(std::string(dq::variants().back()->name) == "portable", "portable is the last");
  for (const dq::Variant* one : dq::variants()) {
    CHECK(dq::use_variant(one->name) && &dq::variant() == one, one->name);
  }
  CHECK(!dq::use_variant("no such") && std::string(dq::variant().name) == "portable", "kept");
  CHECK(dq::use_variant("auto") && &dq::variant() == dq::variants().front(), "auto");
}

}  // namespace
}  // namespace deepinfer::tests

int main() {
  using namespace deepinfer::tests;
  const auto reference = [](const auto& op) { return dq::reference(op); };
  every_fp8_pair("reference", reference);
  every_fp4_pair("reference", reference);
  nan_is_refused_with_its_place("reference", reference);
  nan_scale_of_fp4_is_refused("reference", reference);
  for (const char* name : {"avx512", "avx2", "portable"}) {
    bool found = false;
    for (const dq::Variant* one : dq::variants()) {
      if (std::string(name) != one->name) continue;
      all_of(*one);
      found = true;
    }
    if (!found) not_run(name, "this CPU has no such instructions");
  }
  variants_can_be_chosen();
  return summary("dequant");
}
