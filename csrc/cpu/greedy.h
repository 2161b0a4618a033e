// The greedy loop that all SIREN rules share (docs/method.md 2).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace oasis {
namespace OASIS_ISA {

// `score` is the informativeness [n]. `join(a, m, picked)` updates adjusted[] of the samples left
// after sample a became the m-th pick. Stops where the largest does not exceed `floor`.
template <typename Join>
static int64_t greedy(const double* score, int64_t n, double floor, double* adjusted,
                      int64_t* order, Join join) {
  bool* picked = static_cast<bool*>(calloc(size_t(n), 1));
  for (int64_t i = 0; i < n; ++i) adjusted[i] = score[i];
  int64_t m = 0;
  for (; m < n; ++m) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i)
      if (!picked[i] && (best < 0 || adjusted[i] > adjusted[best])) best = i;
    if (!(adjusted[best] > floor) && floor > -HUGE_VAL) break;
    picked[best] = true;
    order[m] = best;
    if (m + 1 < n) join(best, m, picked);
  }
  free(picked);
  return m;
}

}  // namespace OASIS_ISA
}  // namespace oasis
