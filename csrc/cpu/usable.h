// oasis/usable.h on the CPU, with the place of what is wrong.
#pragma once
#include "oasis/usable.h"

namespace oasis {

struct Finding {
  Wrong wrong;
  int64_t i, j;  // where, in the order of memory
};

// The first entry of gram [n, n] that no inner product can be: a squared norm below 0, or one that
// misses symmetry or Cauchy-Schwarz; then the first that is not finite among valid [n] (null: all).
Finding inner_products(const double* gram, const bool* valid, int64_t n);

// Fills what `Usable` writes, up to the first thing that is wrong.
Finding usable(const Usable&);

}  // namespace oasis
