// oasis/select.h on the CPU.
#pragma once
#include "cpu/usable.h"
#include "oasis/select.h"

namespace oasis {

// `scores` [n] takes the place of the diagonal of gram, null: it stays. What is wrong with the
// batch, if anything; the state is then as it was. Throws as `siren` does, before the state
// changes.
Finding select(const Select&, const double* scores);

}  // namespace oasis
