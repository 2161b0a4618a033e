// What the remembered gradients cover of a batch's (docs/method.md 2.4), one source for host and
// device.
//
// With unit sketches u_i of the candidates and v_k of the m remembered, a_i = ||g_i|| and the
// cosines c_ik = <u_i, v_k>, C_kl = <v_k, v_l>,
//
//   K'_ij = K_ij - a_i a_j c_i^T (C + diag(noise))^-1 c_j,   noise_k = ridge mean(I) / ||g_k||^2,
//
// so everything but K itself is free of the gradients' scale. Cholesky of C + diag(noise), with the
// candidates' cosines as further rows below, leaves x_i = L^-1 c_i in those rows.
#pragma once
#include <cmath>
#include <cstdint>

#include "oasis/numbers.h"

namespace oasis {

struct Remembered {
  const double* gram;       // [n, n]
  const double* sketch;     // [n, width] of any scale
  const bool* valid;        // [n]
  const double* memory;     // [capacity, width], the first min(selected, capacity) in use
  const int64_t* selected;  // samples of the stream that have been remembered, one number
  int64_t n, capacity, width;
  double ridge;
  double* left;    // [n, n] out: K'
  double* scaled;  // [n, width] out: sketches whose squared norms are the diagonal of gram
};

// A row of a sketch as norm x direction: numbers times `to_unit` are near one and have this norm.
struct SketchNorm {
  double to_unit, norm;

  OASIS_HD double direction(double value) const { return norm > 0 ? value * to_unit / norm : 0; }
  OASIS_HD double square() const { return norm / to_unit * (norm / to_unit); }
};

OASIS_HD static inline int64_t memory_filled(int64_t selected, int64_t capacity) {
  return selected < 0 ? 0 : selected < capacity ? selected : capacity;
}

// What a remembered gradient's ridge is beside the 1 of its cosine with itself.
OASIS_HD static inline double memory_noise(double ridge, double mean, double square) {
  return square > 0 ? ridge * mean / square : HUGE_VAL;
}

// 1 / L_kk from the k-th diagonal entry less what the rows before cover; 0 leaves out a row that
// they cover whole, or whose gradient is nothing beside the ridge.
OASIS_HD static inline double memory_pivot(double rest) {
  return rest > kVanishing && rest < HUGE_VAL ? 1 / sqrt(rest) : 0;
}

// K'_ii, and K'_ij of two such, from K, the norms and the inner product of x_i and x_j. In-batch
// products are exact and those with the memory estimates, so the bounds of inner products are
// enforced.
OASIS_HD static inline double memory_square(double square, double covered) {
  return covered < 1 ? square * (1 - covered) : 0;
}
OASIS_HD static inline double memory_product(double gram, double norms, double covered,
                                             double left_norms) {
  const double left = gram - norms * covered;
  return left > left_norms ? left_norms : left < -left_norms ? -left_norms : left;
}

// Where the k-th of `count` samples selected together goes, once `selected` have been in all; -1:
// nowhere, as more than `capacity` come after it.
OASIS_HD static inline int64_t memory_slot(int64_t selected, int64_t count, int64_t k,
                                           int64_t capacity) {
  if (count - k > capacity || selected < count) return -1;
  return (selected - count + k) % capacity;
}

}  // namespace oasis
