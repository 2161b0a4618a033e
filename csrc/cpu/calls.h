// The kernels as the bindings call them: what lies between a tensor and a kernel's arguments.
#pragma once
#include <vector>

#include "cpu/kernels.h"

namespace oasis {

// Samples of a tensor [samples, ...] by its sizes and strides. Merges dimensions that one stride
// can walk, and drops those of size 1. Throws std::invalid_argument where too many are left.
StridedSamples describe(const void* data, DType dtype, const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides);

struct SirenCall {
  const double* gram;             // [n, n]
  const bool* valid;              // [n]
  const double* informativeness;  // [n], or null: the diagonal of gram
  int64_t n;
  Rule rule;
  double ridge, floor;
  double* adjusted;  // [n]
  int64_t* order;    // [n], -1 after the last pick
};

// SIREN on the valid samples alone: an invalid one may neither be picked nor enter a mean. Throws
// std::bad_alloc, and std::invalid_argument for more samples than the exact rule takes.
int64_t siren(const SirenCall&);

// Copies the masked rows of sketch [n, width] into the ring memory [capacity, width], after
// `selected` samples of the stream, these among them.
void remember(const double* sketch, const bool* mask, int64_t n, int64_t width, int64_t selected,
              double* memory, int64_t capacity);

}  // namespace oasis
