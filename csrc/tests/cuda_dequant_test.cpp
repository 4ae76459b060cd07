// csrc/tests/cuda_dequant_test.cpp — the CUDA dequantizer bit for bit against the CPU's: every
// (code, scale) pair, shapes with and without row blocks, NaN flags, refused arguments.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/dequant/cuda/dequant.h"
#include "kernels/dequant/op.h"

namespace deepinfer::tests {
namespace {

namespace dq = kernels::dequant;
using Bytes = std::vector<std::uint8_t>;

constexpr int kNotRun = 77;  // ctest shows it as skipped

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

class OnDevice {
 public:
  explicit OnDevice(const Bytes& bytes) : size_(bytes.size()) {
    must(cudaMalloc(&data_, size_ + 1));
    must(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyHostToDevice));
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }
  Bytes copy() const {
    Bytes bytes(size_);
    must(cudaMemcpy(bytes.data(), data_, size_, cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

struct Case {
  bool fp8;
  std::size_t rows, cols, block_rows;
  Bytes weight, scale;
};

std::size_t divided_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }

int launch(const Case& c, const OnDevice& weight, const OnDevice& scale, void* out, bool fp32,
           int* status) {
  const auto rows = static_cast<std::int64_t>(c.rows), cols = static_cast<std::int64_t>(c.cols);
  if (!c.fp8) {
    return deepinfer_cuda_dequant_fp4_row(weight.data(), scale.data(), out, fp32, rows, cols,
                                          status, nullptr);
  }
  return deepinfer_cuda_dequant_fp8_block(weight.data(), scale.data(), out, fp32, rows, cols,
                                          static_cast<std::int64_t>(c.block_rows), status, nullptr);
}

int flags(const OnDevice& status) {
  int value;
  std::memcpy(&value, status.copy().data(), sizeof(value));
  return value;
}

void compare_with_cpu(const Case& c, const std::string& what) {
  for (const bool fp32 : {false, true}) {
    const std::size_t bytes = c.rows * c.cols * (fp32 ? 4 : 2);
    const dq::OutType type = fp32 ? dq::OutType::kFp32 : dq::OutType::kBf16;
    Bytes wanted(bytes + 64, 0xA5);
    const dq::Status cpu =
        c.fp8 ? dq::cpu(dq::Fp8Block{c.weight.data(), c.scale.data(), wanted.data(), type, c.rows,
                                     c.cols, c.block_rows})
              : dq::cpu(dq::Fp4Row{c.weight.data(), c.scale.data(), wanted.data(), type, c.rows,
                                   c.cols});
    CHECK(cpu.ok(), what);
    const OnDevice weight(c.weight), scale(c.scale), status(Bytes(4, 0));
    const OnDevice out(Bytes(bytes + 64, 0xA5));
    auto* flag = reinterpret_cast<int*>(status.data());
    CHECK(launch(c, weight, scale, out.data(), fp32, flag) == 0, what + ": not launched");
    must(cudaDeviceSynchronize());
    CHECK(out.copy() == wanted, what + (fp32 ? " fp32" : " bf16"));
    CHECK(flags(status) == 0, what + ": flagged");
  }
}

Case every_pair(bool fp8) {
  Case c{fp8, 255, fp8 ? 256u : 512u, 1, {}, {}};
  for (int row = 0; row < 255; ++row) {
    for (int code = 0; code < 256; ++code) {
      c.weight.push_back(static_cast<std::uint8_t>(fp8 && (code & 127) == 127 ? 0 : code));
    }
    c.scale.insert(c.scale.end(), c.cols / 32, static_cast<std::uint8_t>(row));
  }
  return c;
}

Case noise(bool fp8, std::size_t rows, std::size_t cols, std::size_t block_rows) {
  Case c{fp8, rows, cols, block_rows, Bytes(rows * cols / (fp8 ? 1 : 2)), {}};
  c.scale.resize(divided_up(rows, fp8 ? block_rows : 1) * cols / 32);
  std::uint32_t seed = static_cast<std::uint32_t>(rows * 31 + cols);
  for (Bytes* bytes : {&c.weight, &c.scale}) {
    for (std::uint8_t& byte : *bytes) {
      seed = seed * 1664525u + 1013904223u;
      byte = static_cast<std::uint8_t>(seed >> 24);
      if ((byte & 127) == 127) byte = 0x3C;
    }
  }
  return c;
}

void nan_sets_its_flag() {
  for (const bool fp8 : {true, false}) {
    Case c = noise(fp8, 70, 320, 32);
    c.scale.back() = 255;
    if (fp8) c.weight[5] = 0xFF;
    const OnDevice weight(c.weight), scale(c.scale), status(Bytes(4, 0));
    const OnDevice out(Bytes(c.rows * c.cols * 2, 0));
    auto* flag = reinterpret_cast<int*>(status.data());
    CHECK(launch(c, weight, scale, out.data(), false, flag) == 0, "not launched");
    must(cudaDeviceSynchronize());
    CHECK(flags(status) == (fp8 ? 3 : 1), "flags are " + std::to_string(flags(status)));
    const Bytes got = out.copy();
    CHECK((got[2 * (c.rows * c.cols - 1) + 1] & 0x7F) == 0x7F, "the value is not NaN");
    CHECK(launch(c, weight, scale, out.data(), false, nullptr) == 0, "status may be null");
    must(cudaDeviceSynchronize());
  }
}

void wrong_arguments_are_refused() {
  const Case c = noise(true, 32, 64, 32);
  const OnDevice weight(c.weight), scale(c.scale), out(Bytes(32 * 64 * 4, 0));
  const auto call = [&](const std::uint8_t* w, void* o, std::int64_t cols, std::int64_t block) {
    return deepinfer_cuda_dequant_fp8_block(w, scale.data(), o, 0, 32, cols, block, nullptr,
                                            nullptr);
  };
  CHECK(call(weight.data() + 8, out.data(), 32, 32) == cudaErrorInvalidValue, "weight alignment");
  CHECK(call(weight.data(), out.data() + 8, 32, 32) == cudaErrorInvalidValue, "out alignment");
  CHECK(call(weight.data(), out.data(), 33, 32) == cudaErrorInvalidValue, "columns");
  CHECK(call(weight.data(), out.data(), 64, 0) == cudaErrorInvalidValue, "block_rows");
  CHECK(call(nullptr, out.data(), 64, 32) == cudaErrorInvalidValue, "null");
  CHECK(call(nullptr, nullptr, 0, 32) == cudaSuccess, "nothing to do");
}

}  // namespace
}  // namespace deepinfer::tests

int main() {
  using namespace deepinfer::tests;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    not_run("cuda_dequant", "no CUDA device");
    return kNotRun;
  }
  for (const bool fp8 : {true, false}) {
    const std::string name = fp8 ? "fp8" : "fp4";
    compare_with_cpu(every_pair(fp8), name + " every pair");
    for (const std::size_t rows : {1u, 31u, 65u, 1024u}) {
      for (const std::size_t cols : {32u, 96u, 4128u}) {
        for (const std::size_t block_rows : {1u, 32u, 100u}) {
          compare_with_cpu(noise(fp8, rows, cols, block_rows),
                           name + " " + std::to_string(rows) + " x " + std::to_string(cols) +
                               " / " + std::to_string(block_rows));
        }
      }
    }
  }
  nan_sets_its_flag();
  wrong_arguments_are_refused();
  return summary("cuda_dequant");
}
