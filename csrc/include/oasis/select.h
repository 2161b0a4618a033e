// One batch from Gram matrix to mask: candidates are judged (oasis/usable.h), SIREN takes
// redundancy out, ORIS draws (oasis/oris.h).
#pragma once
#include <cstdint>

#include "oasis/names.h"

namespace oasis {

struct Select {
  const double* gram;  // [n, n]
  const bool* given;   // [n], or null: all
  int64_t n;
  bool products, raises;  // what is looked for, as of `Usable`
  Rule rule;
  double ridge;
  bool stop;  // SIREN stops where no score exceeds oris_stop
  OrisConfig config;
  double* statistics;  // the state, advanced
  int64_t* counters;
  // Written.
  double *informativeness, *adjusted, *relative, *probability;  // [n]
  int64_t* order;                                               // [n], -1 after the last pick
  bool *mask, *skipped;                                         // [n]
  double* threshold;                                            // the one used
};

}  // namespace oasis
