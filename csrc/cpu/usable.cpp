#include "cpu/usable.h"

#include <algorithm>
#include <cmath>

namespace oasis {
namespace {

constexpr double kSlack = 0.01;  // what low precision may miss Cauchy-Schwarz and symmetry by
constexpr double kLargest =
    1e150;  // beyond, the variance of scores would overflow, and never decay

bool finite_row(const double* row, int64_t width) {
  for (int64_t k = 0; k < width; ++k)
    if (!std::isfinite(row[k])) return false;
  return true;
}

}  // namespace

Finding inner_products(const double* gram, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (gram[i * n + i] < 0) return {Fault::negative, i, i};
  for (int64_t i = 0; i < n; ++i) {
    const double norm = std::sqrt(gram[i * n + i]);
    for (int64_t j = 0; j < n; ++j) {
      const double here = gram[i * n + j], there = gram[j * n + i];
      const double limit = norm * std::sqrt(gram[j * n + j]);
      const double above = std::fabs(here) - limit, apart = std::fabs(here - there);
      // NaN on either side is for others to judge.
      if (above > kSlack * limit ? apart == apart : apart > kSlack * limit && above == above)
        return {Fault::products, i, j};
    }
  }
  return {Fault::none, 0, 0};
}

Finding usable(const Usable& u) {
  const int64_t n = u.n;
  if (u.scores)
    for (int64_t i = 0; i < n; ++i)
      if (u.scores[i] < 0) return {Fault::score, i, i};
  Finding found{Fault::none, 0, 0};
  for (int64_t i = 0; i < n; ++i) {
    const bool given = !u.given || u.given[i];
    const double norm = u.gram[i * n + i], score = u.scores ? u.scores[i] : norm;
    const bool finite = score < kLargest && norm < kLargest &&
                        (!u.sketch || finite_row(u.sketch + i * u.width, u.width));
    u.skipped[i] = given && !finite;
    // A zero gradient has nothing to teach (docs/method.md 1.3).
    u.valid[i] = given && finite && score > 0 && norm > 0;
    u.informativeness[i] = u.valid[i] ? score : 0.0;
    if (u.raises && u.skipped[i] && found.fault == Fault::none) found = {Fault::skipped, i, i};
  }
  if (found.fault != Fault::none) return found;
  for (int64_t i = 0; i < n; ++i) {
    const double* from = u.gram + i * n;
    double* to = u.left + i * n;
    for (int64_t j = 0; j < n; ++j) to[j] = u.valid[i] && u.valid[j] ? from[j] : 0.0;
    if (!finite_row(to, n)) return {Fault::entries, i, i};
  }
  return found;
}

}  // namespace oasis
