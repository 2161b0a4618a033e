// What keeps sums and products of squared norms inside float64, whatever the scale of gradients.
// One source for host and device; every function has internal linkage.
#pragma once
#include <cmath>

#ifndef OASIS_HD
#if defined(__CUDACC__)
#define OASIS_HD __host__ __device__
#else
#define OASIS_HD
#endif
#endif

namespace oasis {

constexpr double kVanishing = 1e-12;  // ||S_U||^2 below this x (sum of norms)^2 is zero

// A power of two that brings values up to `top` near 1, and whose inverse is a normal number too.
OASIS_HD static inline double near_one(double top) {
  if (!(top > 0)) return 1;
  const int exponent = ilogb(top);
  return scalbn(1.0, exponent > 1022 ? -1022 : exponent < -1022 ? 1022 : -exponent);
}

// A power of two whose square brings `square` > 0 into [1, 4).
OASIS_HD static inline double unit_norm(double square) {
  const int exponent = ilogb(square);
  return scalbn(1.0, -(exponent - (exponent & 1)) / 2);
}

// <a, b> / (||a|| ||b||) where neither square overflows but their product may; 0 for a zero vector.
// Exactly 1 for twins.
OASIS_HD static inline double cosine(double inner, double square_a, double square_b) {
  if (!(square_a > 0 && square_b > 0)) return 0;
  const double a = unit_norm(square_a), b = unit_norm(square_b);
  return inner * a * b / sqrt((square_a * a * a) * (square_b * b * b));
}

}  // namespace oasis
