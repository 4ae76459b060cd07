// csrc/kernels/quantize_rows/cuda/rotation.cuh — rotary embedding of interleaved pairs.
//
// The angle is the fp32 product of position and frequency, up to 2^20 and more. Its cosine and
// sine are those of exact arithmetic rounded to fp32: reduced and summed in fp64, whose error is
// below 2^-50, so that a rounding differs from the ideal about once in 2^26 values. That costs 32
// pairs a row, less than a load, and makes the result one that a CPU gives too.
#pragma once
#include "kernels/quantize_rows/cuda/chunk.cuh"

namespace deepinfer::kernels::rows {

struct Turn {
  float cos;
  float sin;
};

// angle >= 0. Taylor series to r^15 and r^16 on |r| <= pi / 4.
__device__ inline Turn turn(float angle) {
  constexpr double kPerQuarter = 0.63661977236758134308, kQuarter = 1.57079632679489655800,
                   kQuarterRest = 6.12323399573676603587e-17;
  const double count = rint(angle * kPerQuarter);
  const double r = fma(-count, kQuarterRest, fma(-count, kQuarter, static_cast<double>(angle)));
  const double z = r * r;
  double odd = -1.0 / 1307674368000.0, even = 1.0 / 20922789888000.0;
  odd = fma(odd, z, 1.0 / 6227020800.0), even = fma(even, z, -1.0 / 87178291200.0);
  odd = fma(odd, z, -1.0 / 39916800.0), even = fma(even, z, 1.0 / 479001600.0);
  odd = fma(odd, z, 1.0 / 362880.0), even = fma(even, z, -1.0 / 3628800.0);
  odd = fma(odd, z, -1.0 / 5040.0), even = fma(even, z, 1.0 / 40320.0);
  odd = fma(odd, z, 1.0 / 120.0), even = fma(even, z, -1.0 / 720.0);
  odd = fma(odd, z, -1.0 / 6.0), even = fma(even, z, 1.0 / 24.0);
  even = fma(even, z, -0.5);
  const float sine = static_cast<float>(fma(odd * z, r, r));
  const float cosine = static_cast<float>(fma(even, z, 1.0));
  const auto quarter = static_cast<unsigned>(static_cast<long long>(count));
  const float first = quarter & 1 ? sine : cosine, second = quarter & 1 ? cosine : sine;
  return {(quarter + 1) & 2 ? -first : first, quarter & 2 ? -second : second};
}

// Four pairs; products and their sums round one by one, as they do in the reference.
__device__ inline void rotate(float (&x)[kChunk], const Turn (&turns)[kChunk / 2]) {
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    const auto [cos, sin] = turns[i];
    x[2 * i] = __fsub_rn(__fmul_rn(even, cos), __fmul_rn(odd, sin));
    x[2 * i + 1] = __fadd_rn(__fmul_rn(even, sin), __fmul_rn(odd, cos));
  }
}

}  // namespace deepinfer::kernels::rows
