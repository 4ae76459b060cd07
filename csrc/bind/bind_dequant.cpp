// csrc/bind/bind_dequant.cpp — packed weights to bf16 or fp32, and what this module can do.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>

#include "bind/arrays.h"
#include "bind/topics.h"
#include "kernels/dequant/op.h"
#ifdef DEEPINFER_WITH_CUDA
#include "kernels/dequant/cuda/dequant.h"
#endif

namespace deepinfer::bind {
namespace {

using namespace nb::literals;
namespace dq = kernels::dequant;

[[noreturn]] void fail(const std::string& message) { throw nb::value_error(message.c_str()); }

void raise_unless_ok(const dq::Status& status) {
  const std::string place = " at row " + std::to_string(status.row) + ", column ";
  switch (status.kind) {
    case dq::Status::Kind::kOk:
      return;
    case dq::Status::Kind::kScaleIsNan:
      fail("scale: 255 (NaN)" + place + std::to_string(status.column) + " (block index)");
    case dq::Status::Kind::kWeightIsNan:
      fail("weight: NaN code" + place + std::to_string(status.column));
  }
}

struct Call {
  Array weight;
  Array scale;
  Array out;
  std::size_t rows;
  std::size_t cols;
  int threads;
  std::uintptr_t stream;
  std::optional<Array> status;

  dq::OutType out_type() const {
    return out.kind == Kind::kFp32 ? dq::OutType::kFp32 : dq::OutType::kBf16;
  }
};

// Checks all that both formats share; `per_byte` columns are in one byte of weight.
Call checked(nb::handle weight, nb::handle scale, nb::handle out, std::size_t block_rows,
             std::size_t per_byte, int threads, std::uintptr_t stream, nb::handle status) {
  Call call{input(weight, "weight", {Kind::kByte}),
            input(scale, "scale", {Kind::kByte}),
            output(out, "out", {Kind::kBf16, Kind::kFp32}),
            0,
            0,
            threads,
            stream,
            std::nullopt};
  require_dims(call.weight, 2, per_byte == 1 ? "[rows, cols]" : "[rows, cols / 2]");
  call.rows = call.weight.shape[0];
  call.cols = call.weight.shape[1] * per_byte;
  if (call.cols % dq::kBlockCols != 0) {
    fail("weight: " + std::to_string(call.cols) + " columns given, a multiple of 32 needed");
  }
  const std::size_t scale_rows = call.rows / block_rows + (call.rows % block_rows != 0 ? 1 : 0);
  require_shape(call.scale, {scale_rows, call.cols / dq::kBlockCols},
                "one scale a block of weight");
  require_shape(call.out, {call.rows, call.cols}, "the columns of weight");
  require_same_device(call.scale, call.weight);
  require_same_device(call.out, call.weight);
  require_apart(call.out, call.weight);
  require_apart(call.out, call.scale);
  if (threads < 1) fail("threads: " + std::to_string(threads) + " given, at least 1 needed");
  if (!status.is_none()) {
    call.status = output(status, "status", {Kind::kInt32});
    require_same_device(*call.status, call.weight);
    require_shape(*call.status, {1}, "one flag word");
  }
  if (call.weight.on_cpu() && stream != 0) fail("stream: given for arrays on the CPU, 0 needed");
  if (call.weight.on_cpu() && call.status) fail("status: given for arrays on the CPU, None needed");
  return call;
}

#ifdef DEEPINFER_WITH_CUDA
void require_cuda(const Call& call) {
  if (call.weight.device_type == nb::device::cuda::value) return;
  fail("weight: device type " + std::to_string(call.weight.device_type) +
       " given, CPU or CUDA memory needed");
}

void raise_unless_launched(int code) {
  if (code == 0) return;
  throw std::runtime_error(std::string("CUDA launch failed: ") + deepinfer_cuda_error_name(code) +
                           (code == 1 ? "; weight and out must be aligned to 16 bytes" : ""));
}

int* status_of(const Call& call) { return call.status ? call.status->as<int>() : nullptr; }
#else
void require_cuda(const Call& call) {
  fail("weight: device type " + std::to_string(call.weight.device_type) +
       " given, CPU memory needed: this module was built without CUDA");
}
#endif

template <typename Op>
dq::Status run_on_cpu(const Op& op, int threads) {
  nb::gil_scoped_release release;
  return dq::cpu(op, threads);
}

void dequant_fp8_block(nb::object weight, nb::object scale, nb::object out, std::int64_t block_rows,
                       int threads, std::uintptr_t stream, nb::object status) {
  if (block_rows < 1)
    fail("block_rows: " + std::to_string(block_rows) + " given, at least 1 needed");
  const auto height = static_cast<std::size_t>(block_rows);
  const Call call = checked(weight, scale, out, height, 1, threads, stream, status);
  if (!call.weight.on_cpu()) {
    require_cuda(call);
#ifdef DEEPINFER_WITH_CUDA
    raise_unless_launched(deepinfer_cuda_dequant_fp8_block(
        call.weight.as<const std::uint8_t>(), call.scale.as<const std::uint8_t>(), call.out.data,
        call.out.kind == Kind::kFp32, static_cast<std::int64_t>(call.rows),
        static_cast<std::int64_t>(call.cols), block_rows, status_of(call),
        reinterpret_cast<void*>(call.stream)));
#endif
    return;
  }
  raise_unless_ok(run_on_cpu(
      dq::Fp8Block{call.weight.as<const std::uint8_t>(), call.scale.as<const std::uint8_t>(),
                   call.out.data, call.out_type(), call.rows, call.cols, height},
      threads));
}

void dequant_fp4_row(nb::object weight, nb::object scale, nb::object out, int threads,
                     std::uintptr_t stream, nb::object status) {
  const Call call = checked(weight, scale, out, 1, 2, threads, stream, status);
  if (!call.weight.on_cpu()) {
    require_cuda(call);
#ifdef DEEPINFER_WITH_CUDA
    raise_unless_launched(deepinfer_cuda_dequant_fp4_row(
        call.weight.as<const std::uint8_t>(), call.scale.as<const std::uint8_t>(), call.out.data,
        call.out.kind == Kind::kFp32, static_cast<std::int64_t>(call.rows),
        static_cast<std::int64_t>(call.cols), status_of(call),
        reinterpret_cast<void*>(call.stream)));
#endif
    return;
  }
  raise_unless_ok(run_on_cpu(
      dq::Fp4Row{call.weight.as<const std::uint8_t>(), call.scale.as<const std::uint8_t>(),
                 call.out.data, call.out_type(), call.rows, call.cols},
      threads));
}

nb::dict capabilities() {
  nb::dict out;
  nb::list available;
  for (const dq::Variant* one : dq::variants()) available.append(one->name);
  out["simd"] = dq::variant().name;
  out["simd_available"] = available;
#ifdef DEEPINFER_WITH_CUDA
  out["cuda"] = true;
#else
  out["cuda"] = false;
#endif
  out["compiled_for"] = DEEPINFER_COMPILED_FOR;
  return out;
}

void set_simd(const std::string& name) {
  if (dq::use_variant(name.c_str())) return;
  std::string known = "auto";
  for (const dq::Variant* one : dq::variants()) known += std::string(", ") + one->name;
  fail("name: '" + name + "' given, one of " + known + " needed on this machine");
}

}  // namespace

void bind_dequant(nb::module_& m) {
  m.def("dequant_fp8_block", &dequant_fp8_block, "weight"_a, "scale"_a, "out"_a, "block_rows"_a,
        "threads"_a = 1, "stream"_a = 0, "status"_a = nb::none(),
        "E4M3 weights [rows, cols] with one E8M0 scale per block_rows x 32, to bf16 or fp32.\n"
        "ValueError names the place of a NaN; nothing is written then. CUDA arrays: launched on\n"
        "the stream, NaN is reported by OR into status (int32[1]): 1 for a scale, 2 for a weight.");
  m.def("dequant_fp4_row", &dequant_fp4_row, "weight"_a, "scale"_a, "out"_a, "threads"_a = 1,
        "stream"_a = 0, "status"_a = nb::none(),
        "Packed E2M1 weights [rows, cols / 2] with one E8M0 scale per 32 columns of a row, to\n"
        "bf16 or fp32. Errors and CUDA arrays as in dequant_fp8_block.");
  m.def("capabilities", &capabilities,
        "What this module runs here: simd, simd_available, cuda, compiled_for.");
  m.def("set_simd", &set_simd, "name"_a,
        "Choose the CPU kernels by name, 'auto' for the best; for tests and benchmarks.");
}

}  // namespace deepinfer::bind
