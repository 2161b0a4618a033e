// The polynomial SIREN rules by one block: `residual` (docs/method.md 2.3, pivoted Cholesky),
// `pairwise` (the first sum of section 2) and `none`. A thread owns samples t, t + threads, ...
#pragma once
#include <cmath>

#include "common.cuh"
#include "oasis/names.h"
#include "oasis/numbers.h"

namespace oasis {

constexpr int kRuleThreads = 256;

struct RuleArguments {
  const double* gram;  // [n, n]
  const bool* valid;
  const double* floor;
  int n;
  Rule rule;
  double ridge;
  double* factor;  // [n, n] rows of the Cholesky factor in the order of the picks, or null: shared
  double* adjusted;
  int64_t* order;
};

struct RuleShared {
  double *adjusted, *column;  // [n]; column: the pivot's entries of the earlier rows
  bool* open;                 // [n] valid and not yet picked; only its owner looks
  Largest* best;              // [2, warps]
  double* factor;             // [n, n] where there is room
  __host__ __device__ RuleShared(Carve& carve, int64_t n, bool with_factor) {
    adjusted = carve.take<double>(n);
    column = carve.take<double>(n);
    open = carve.take<bool>(n);
    best = carve.take<Largest>(2 * (1024 / kWarp));
    factor = with_factor ? carve.take<double>(n * n) : nullptr;
  }
};

__device__ inline void rule_block(const RuleArguments& r, const RuleShared& s) {
  const int n = r.n, threads = int(blockDim.x);
  double* factor = s.factor ? s.factor : r.factor;
  double unit = 1, lambda = 0;  // unit: as on the CPU, sums and products stay inside float64
  if (r.rule != Rule::none) {
    double top = 0;
    for (int i = 0; i < n; ++i)
      if (r.valid[i]) top = fmax(top, r.gram[int64_t(i) * (n + 1)]);
    unit = near_one(top);
  }
  if (r.rule == Rule::residual) {
    int count = 0;
    for (int i = 0; i < n; ++i)
      if (r.valid[i]) lambda += r.gram[int64_t(i) * (n + 1)] * unit, ++count;
    lambda *= count ? r.ridge / count : 0.0;
  }
  const double floor = *r.floor * unit;
  for (int i = int(threadIdx.x); i < n; i += threads) {
    s.open[i] = r.valid[i];
    s.adjusted[i] = r.valid[i] ? r.gram[int64_t(i) * (n + 1)] * unit : 0.0;
    r.order[i] = -1;
  }
  for (int m = 0; m < n; ++m) {
    // Row m - 1 of the factor is complete behind this barrier too.
    const Largest pick = block_largest(s.open, s.adjusted, n, s.best + (m & 1) * (threads / kWarp));
    if (pick.index == n || (floor > -HUGE_VAL && !(pick.value > floor))) break;
    const int a = pick.index;
    if (threadIdx.x == 0) r.order[m] = a;
    if (int(threadIdx.x) == a % threads) s.open[a] = false;
    const double square = r.gram[int64_t(a) * (n + 1)], score = square * unit;
    if (r.rule == Rule::pairwise) {
      for (int i = int(threadIdx.x); i < n; i += threads) {
        if (!s.open[i]) continue;
        s.adjusted[i] -=
            cosine(r.gram[int64_t(a) * n + i], r.gram[int64_t(i) * (n + 1)], square) * score;
      }
    } else if (r.rule == Rule::residual) {
      for (int u = int(threadIdx.x); u < m; u += threads) s.column[u] = factor[int64_t(u) * n + a];
      __syncthreads();  // the pivot's column is complete
      const double pivot = pick.value + lambda;
      // A pivot lost in rounding spans nothing new.
      const double inverse = pivot > 1e-13 * score ? rsqrt(pivot) : 0.0;
      for (int i = int(threadIdx.x); i < n; i += threads) {
        if (!s.open[i]) continue;
        double entry = r.gram[int64_t(a) * n + i] * unit;
#pragma unroll 8
        for (int u = 0; u < m; ++u) entry -= s.column[u] * factor[int64_t(u) * n + i];
        entry *= inverse;
        factor[int64_t(m) * n + i] = entry;
        const double left = s.adjusted[i] - entry * entry;
        s.adjusted[i] = left > 0 ? left : 0.0;
      }
    }
  }
  // Stopped early: what was not picked keeps its raw score.
  for (int i = int(threadIdx.x); i < n; i += threads)
    r.adjusted[i] = s.open[i] ? r.gram[int64_t(i) * (n + 1)] : s.adjusted[i] / unit;
}

__global__ void __launch_bounds__(kRuleThreads, 1)
    siren_rule_kernel(const RuleArguments r, bool factor_in_shared) {
  Carve carve(dynamic_shared());
  const RuleShared shared(carve, r.n, factor_in_shared);
  rule_block(r, shared);
}

}  // namespace oasis
