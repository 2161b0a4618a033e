#include "cpu/usable.h"

namespace oasis {
namespace {

constexpr Finding kNothing{Wrong::nothing, 0, 0};

bool finite_row(const double* row, int64_t width) {
  for (int64_t k = 0; k < width; ++k)
    if (!finite_number(row[k])) return false;
  return true;
}

// Among given [n], null: all. NaN passes.
Finding possible_products(const double* gram, const bool* given, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if ((!given || given[i]) && gram[i * n + i] < 0) return {Wrong::negative, i, i};
  for (int64_t i = 0; i < n; ++i) {
    if (given && !given[i]) continue;
    const double norm = norm_of(gram[i * n + i]);
    for (int64_t j = 0; j < n; ++j) {
      if (given && !given[j]) continue;
      if (no_product(gram[i * n + j], gram[j * n + i], norm * norm_of(gram[j * n + j])))
        return {Wrong::products, i, j};
    }
  }
  return kNothing;
}

// Among valid [n], null: all.
Finding finite_entries(const double* gram, const bool* valid, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (valid && !valid[i]) continue;
    for (int64_t j = 0; j < n; ++j)
      if ((!valid || valid[j]) && !finite_number(gram[i * n + j])) return {Wrong::entries, i, j};
  }
  return kNothing;
}

}  // namespace

Finding inner_products(const double* gram, const bool* valid, int64_t n) {
  const Finding found = possible_products(gram, valid, n);
  return found.wrong != Wrong::nothing ? found : finite_entries(gram, valid, n);
}

Finding usable(const Usable& u) {
  const int64_t n = u.n;
  Finding found = u.products ? possible_products(u.gram, u.given, n) : kNothing;
  if (found.wrong != Wrong::nothing) return found;
  for (int64_t i = 0; i < n; ++i) {
    const bool finite = !u.sketch || finite_row(u.sketch + i * u.width, u.width);
    const Wrong wrong = judge_candidate(u, i, finite);
    const bool first = found.wrong == Wrong::nothing || wrong < found.wrong;
    if (wrong != Wrong::nothing && first) found = {wrong, i, i};
  }
  if (found.wrong != Wrong::nothing) return found;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      u.left[i * n + j] = u.valid[i] && u.valid[j] ? u.gram[i * n + j] : 0.0;
  return finite_entries(u.left, u.valid, n);
}

}  // namespace oasis
