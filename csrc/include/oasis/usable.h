// Candidates on their way to a selection: what a Gram matrix must be, and who can be scored. One
// source for host and device.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "oasis/names.h"
#include "oasis/numbers.h"

namespace oasis {

// Beyond, the variance of scores would overflow, and never decay.
constexpr double kLargest = 1e150;
// What inner products in low precision may miss, relative to the norms.
constexpr double kProductSlack = 0.01;

struct Usable {
  const double* gram;    // [n, n]
  const bool* given;     // [n], or null: all
  const double* scores;  // [n], or null: the diagonal of gram
  const double* sketch;  // [n, width], or null
  int64_t n, width;
  bool products;  // whether gram is checked for what no inner product can be
  bool raises;    // whether a sample that cannot be scored is wrong
  // Written: gram and scores with zeros where a sample is not valid.
  double *left, *informativeness;
  bool *valid, *skipped;
};

OASIS_HD static inline bool finite_number(double x) { return x - x == 0; }

// The norm of a squared norm. Where that is too small for a double its products with others are not
// yet: it may then be anything up to DBL_MIN. NaN stays.
OASIS_HD static inline double norm_of(double squared) {
  return sqrt(squared < DBL_MIN ? DBL_MIN : squared);
}

// Whether entries (i, j) and (j, i) miss symmetry or Cauchy-Schwarz by more than low precision
// explains; `limit` is the product of the norms. NaN is for others to judge.
OASIS_HD static inline bool no_product(double here, double there, double limit) {
  const double slack = kProductSlack * limit;
  const double above = fabs(here) - limit, apart = fabs(here - there);
  return (above > slack && apart == apart) || (apart > slack && above == above);
}

// Whether sample i is valid: given, with finite scores and a gradient that is not zero, which has
// nothing to teach (docs/method.md 1.3). Skipped: given, its scores not finite, or beyond kLargest.
OASIS_HD static inline Wrong judge_candidate(const Usable& u, int64_t i, bool finite_sketch) {
  const bool given = !u.given || u.given[i];
  const double norm = u.gram[i * u.n + i], score = u.scores ? u.scores[i] : norm;
  const bool finite = score < kLargest && norm < kLargest && finite_sketch;
  u.skipped[i] = given && !finite;
  u.valid[i] = given && finite && score > 0 && norm > 0;
  u.informativeness[i] = u.valid[i] ? score : 0.0;
  if (given && u.scores && score < 0) return Wrong::score;
  return u.raises && u.skipped[i] ? Wrong::skipped : Wrong::nothing;
}

}  // namespace oasis
