// csrc/kernels/linear_fp8/cuda/plan.h — which tile a shape gets. Only speed hangs on it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/linear_fp8/cuda/shape.h"

namespace deepinfer::kernels::linear_fp8 {

enum Plan : std::int64_t {
  kAuto = 0,
  k64x16,
  k64x32,
  k64x64,
  k64x128,
  k128x64,
  k128x128,
  kPortable,
  kPlans
};

struct PlanSize {
  int rows;
  int outputs;
  int step_cycles;  // of one pipeline step, all data at hand
};

// By plan; fitted to bench/gpu_linear_fp8.py --plans.
constexpr PlanSize kPlanSizes[] = {{0, 0, 0},      {64, 16, 170},  {64, 32, 190},  {64, 64, 260},
                                   {64, 128, 480}, {128, 64, 400}, {128, 128, 750}};

// The plan with the shortest estimated time: rounds of tiles, each as long as its arithmetic or as
// its bytes take one multiprocessor.
inline Plan choose(const Shape& shape, int processors) {
  constexpr double kBytesPerCycle = 40.0, kTileCycles = 2000.0;
  Plan best = k128x128;
  double least = 0.0;
  for (std::int64_t plan = k64x16; plan <= k128x128; ++plan) {
    const PlanSize& size = kPlanSizes[plan];
    const double tiles = static_cast<double>((shape.m + size.rows - 1) / size.rows) *
                         column_tiles(shape, size.outputs);
    const double rounds =
        static_cast<double>((static_cast<std::int64_t>(tiles) + processors - 1) / processors);
    const double bytes = (std::min(size.rows, shape.m) + size.outputs) * static_cast<double>(kStep);
    const double step = std::max<double>(size.step_cycles, bytes / kBytesPerCycle);
    const double cycles = rounds * (shape.steps() * step + kTileCycles);
    if (plan == k64x16 || cycles < least) {
      least = cycles;
      best = static_cast<Plan>(plan);
    }
  }
  return best;
}

}  // namespace deepinfer::kernels::linear_fp8
