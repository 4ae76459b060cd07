// csrc/kernels/linear_fp8/cuda/plan.h — which tile a shape gets. Only speed hangs on it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/linear_fp8/cuda/shape.h"

namespace deepinfer::kernels::linear_fp8 {

enum Plan : std::int64_t { kAuto, k16x64, k32x64, k64x64, k64x128, k128x128, kPortable, kPlans };

struct PlanSize {
  int rows;
  int outputs;
  int step_cycles;  // of one pipeline step, all data at hand: measured, docs/kernels/linear_fp8.md
};

// By plan.
constexpr PlanSize kPlanSizes[] = {{0, 0, 0},     {16, 64, 340},  {32, 64, 420},
                                   {64, 64, 540}, {64, 128, 900}, {128, 128, 1540}};

// The plan with the shortest estimated time: rounds of tiles, each as long as its arithmetic or as
// its bytes take one multiprocessor.
inline Plan choose(const Shape& shape, int processors) {
  constexpr double kBytesPerCycle = 40.0, kTileCycles = 2000.0;
  Plan best = k128x128;
  double least = 0.0;
  // Sixteen rows at a time, more than once, read the weights too often.
  const std::int64_t first = shape.m <= 16 ? k16x64 : k32x64;
  for (std::int64_t plan = first; plan <= k128x128; ++plan) {
    const PlanSize& size = kPlanSizes[plan];
    const double tiles = static_cast<double>((shape.m + size.rows - 1) / size.rows) *
                         column_tiles(shape, size.outputs);
    const double rounds =
        static_cast<double>((static_cast<std::int64_t>(tiles) + processors - 1) / processors);
    const double bytes = (std::min(size.rows, shape.m) + size.outputs) * static_cast<double>(kStep);
    const double step = std::max<double>(size.step_cycles, bytes / kBytesPerCycle);
    const double cycles = rounds * (shape.steps() * step + kTileCycles);
    if (plan == first || cycles < least) {
      least = cycles;
      best = static_cast<Plan>(plan);
    }
  }
  return best;
}

}  // namespace deepinfer::kernels::linear_fp8
