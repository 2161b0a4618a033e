// Candidates on their way to a selection: what a Gram matrix must be, and who can be scored.
#pragma once
#include <cstdint>

namespace oasis {

enum class Fault : int { none, negative, products, score, skipped, entries };

struct Finding {
  Fault fault;
  int64_t i, j;  // where, in the order of memory
};

// The first entry of gram [n, n] that no inner product can be: a squared norm below 0, or one that
// misses symmetry or Cauchy-Schwarz by more than low precision explains. NaN passes.
Finding inner_products(const double* gram, int64_t n);

struct Usable {
  const double* gram;    // [n, n]
  const bool* given;     // [n], or null: all
  const double* scores;  // [n], or null: the diagonal of gram
  const double* sketch;  // [n, width], or null
  int64_t n, width;
  bool raises;  // whether a sample that cannot be scored is a fault
  // Written: gram and scores with zeros where a sample is not valid.
  double *left, *informativeness;
  bool *valid, *skipped;
};

// Valid is who was given, with finite scores and a gradient that is not zero; skipped, whose scores
// are not finite.
Finding usable(const Usable&);

}  // namespace oasis
