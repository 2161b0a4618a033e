// A seeded sketch of many numbers by few: unbiased estimates of inner products.
//
// Positions are cut into runs as long as the sketch, each rotated at random, each number with a
// random sign. Two numbers meet with probability 1/dim or never, so the error is a count sketch's
// or less, and a run is added as two slices. Both come from a hash of the position: no table.
#pragma once
#include <cstdint>

#include "oasis/numbers.h"

namespace oasis {

struct SketchPlan {
  int64_t first;  // position of a sample's first number among all of its parameters'
  int64_t dim;    // of the sketch, < 2^31
  uint64_t seed;
  bool exact;  // a sample has at most `dim` numbers: they are the sketch
};

// The counter-th output of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
OASIS_HD static inline uint64_t sketch_bits(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// By how much run number `run` is rotated.
OASIS_HD static inline int64_t sketch_rotation(const SketchPlan& plan, int64_t run) {
  if (plan.exact) return 0;
  return int64_t((sketch_bits(plan.seed, 2 * uint64_t(run)) >> 32) * uint64_t(plan.dim) >> 32);
}

// Signs of the positions 64 word, ..., 64 word + 63, a bit each (set: minus).
OASIS_HD static inline uint64_t sketch_signs(const SketchPlan& plan, int64_t word) {
  return plan.exact ? 0 : sketch_bits(plan.seed, 2 * uint64_t(word) + 1);
}

}  // namespace oasis
