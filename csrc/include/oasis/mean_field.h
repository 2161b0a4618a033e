// Mean-field SIREN (docs/method.md 2.2): the alternating binomial sum
//
//     sum_j (-1)^j C(n, j) f(j),   f(j) = (I + j J) / ((j + 1) sqrt(q(j))),   j = 0..n
//     q(j) = square + linear j + quadratic j (j - 1)
//
// without its cancellation (terms of 2^n for a result below 1). It is the Norlund-Rice integral
//
//     (1 / 2 pi i) int P(z) f(z) dz,   P(z) = n! / prod_{k=0..n} (k - z),
//
// up a line Re z = -1/2 left of the poles 0..n and right of everything singular in f; the poles are
// then enclosed at infinity, where P f vanishes. On the line nothing cancels: |P| <= B(1/2, n + 1).
// - A singularity of f between -1 and 0 (q's root for a small `square`): the line moves to +1/2 and
//   the term j = 0 is added by hand.
// - quadratic < 0: q has a root beyond n as well, and a second line runs back between n and it, at
//   n + 1/2, or at n - 1/2 with the term j = n by hand. P(n - z) = +-P(z): the same table.
// - Complex roots stay at least 1/2 left of the line, at any height. Real singularities need few
//   nodes (y = sinh(t) / 2 maps them all to |Im t| = pi / 2), complex ones an even step in y.
// - n <= kDirect is summed as it stands.
// One source for host and device; every function has internal linkage.
#pragma once
#include <cmath>

#include "oasis/numbers.h"

namespace oasis {

struct MeanField {
  double square, linear, quadratic;  // q: squared norm of S_U for |U| = j + 1, on average
  double score, mean;                // I and J
  double norm, mean_norm;            // ||g_u|| and the mean norm of the others
};

// The sum's q never falls: `linear` is at least `quadratic` and 0, so no root of q has a positive
// real part but the one beyond n. And q(n), a squared norm, is not negative but by rounding.
OASIS_HD static inline void mean_field_bound(MeanField& f, int n) {
  f.linear = fmax(f.linear, fmax(f.quadratic, 0.0));
  const double least = n > 1 ? -(f.square / n + f.linear) / (n - 1) : 0.0;
  f.quadratic = fmax(f.quadratic, least);
}

// f(j) for one j; 0 where the mean vector counts as zero, as in the exact rule.
OASIS_HD static inline double mean_field_term(const MeanField& f, double j) {
  const double q = f.square + j * (f.linear + (j - 1) * f.quadratic);
  const double length = f.norm + j * f.mean_norm;
  return q > kVanishing * length * length ? (f.score + j * f.mean) / ((j + 1) * sqrt(q)) : 0.0;
}

// Nodes and weights of the lines for one n. The CPU has them to itself (MeanFieldTable); on a GPU
// the threads of a block divide the nodes, `first`, `first` + kStride, ..., and the lanes of a warp
// a sum.
struct MeanFieldNodes {
  static constexpr int kDirect = 12;
  static constexpr int kReal = 64, kComplex = 500, kNodes = kReal + kComplex;
  static constexpr double kStepReal = 0.08, kStepComplex = 0.08;

  double y[kNodes];                     // z = -+1/2 + i y: the real table, then the complex one
  double re[2][kNodes], im[2][kNodes];  // weight x P(z) at Re z = -1/2 and +1/2

  template <int kStride>
  OASIS_HD void start(int first) {  // n = 0
    const double pi = 3.14159265358979323846;
    for (int i = first; i < kNodes; i += kStride) {
      const double t = kStepReal * i;
      double weight = (i < kReal ? kStepReal * 0.5 * cosh(t) : kStepComplex) / pi;
      if (i == 0 || i == kReal) weight *= 0.5;
      y[i] = i < kReal ? 0.5 * sinh(t) : kStepComplex * (i - kReal);
      const double square = 0.25 + y[i] * y[i];  // P = -1 / z
      for (int side = 0; side < 2; ++side) {
        re[side][i] = (side ? -0.5 : 0.5) * weight / square;
        im[side][i] = y[i] * weight / square;
      }
    }
  }

  // From n - 1 to n: P gains the factor n / (n - z). `used` even nodes still matter.
  template <int kStride>
  OASIS_HD void advance(int n, int used, int first) {
    for (int side = 0; side < 2; ++side) {
      const double x = n - (side ? 0.5 : -0.5);
      for (int i = first; i < kReal + used; i += kStride) {
        const double scale = n / (x * x + y[i] * y[i]);
        const double a = re[side][i], b = im[side][i];
        re[side][i] = (a * x - b * y[i]) * scale;
        im[side][i] = (b * x + a * y[i]) * scale;
      }
    }
  }

  // |P| falls along the line: nodes below 1e-18 of the first do not come back for a larger n.
  OASIS_HD int still_used(int used) const {
    const double least = 1e-18 * fabs(re[0][kReal]);
    for (; used > 8; --used) {
      const int last = kReal + used - 1;
      if (fabs(re[0][last]) + fabs(im[0][last]) > least) break;
    }
    return used;
  }

  // Re of int P(z) f(origin + sign z) over the line on `side`, nodes [begin, end)
  // in steps of kStride.
  template <int kStride>
  OASIS_HD double line(const MeanField& f, int side, double origin, double sign, int begin,
                       int end) const {
    const double half = side ? 0.5 : -0.5, x = origin + sign * half;
    // q(x + i v) = (real - quadratic v^2) + i v slope
    const double real = f.square + x * (f.linear + (x - 1) * f.quadratic);
    const double slope = f.linear + (2 * x - 1) * f.quadratic;
    const double top = f.score + x * f.mean;
    const double* p = re[side];
    const double* r = im[side];
    double sum = 0;
#if defined(_OPENMP) && !defined(__CUDA_ARCH__)
#pragma omp simd reduction(+ : sum)
#endif
    for (int i = begin; i < end; i += kStride) {
      const double v = sign * y[i];
      const double q_re = real - f.quadratic * v * v, q_im = slope * v;
      // The principal root, each half without cancellation.
      const double large = sqrt(0.5 * (sqrt(q_re * q_re + q_im * q_im) + fabs(q_re)));
      const double small = 0.5 * fabs(q_im) / large;
      const double root_re = q_re >= 0 ? large : small;
      const double size = q_re >= 0 ? small : large;
      const double root_im = q_im >= 0 ? size : -size;
      const double low_re = (x + 1) * root_re - v * root_im;
      const double low_im = (x + 1) * root_im + v * root_re;
      const double f_re = top * low_re + v * f.mean * low_im;
      const double f_im = v * f.mean * low_re - top * low_im;
      sum += (p[i] * f_re - r[i] * f_im) / (low_re * low_re + low_im * low_im);
    }
    return sum;
  }

  // What `lane` of kLanes adds to the alternating sum for n. `f` must have been bounded.
  template <int kLanes>
  OASIS_HD double part(const MeanField& f, int n, int used, int lane) const {
    if (n <= kDirect) {
      double total = 0, binomial = 1;
      for (int j = 0; j <= n; ++j) {
        if (j % kLanes == lane) total += binomial * mean_field_term(f, j);
        binomial *= -double(n - j) / (j + 1);
      }
      return total;
    }
    if (!(f.square > 0 || f.linear > 0)) return 0;
    const double middle = f.linear - f.quadratic;
    const double discriminant = middle * middle - 4 * f.square * f.quadratic;
    const bool real = discriminant >= 0;
    // How far the first root of q lies left of zero.
    const double distance =
        real ? 2 * f.square / (middle + sqrt(discriminant)) : 0.5 * middle / f.quadratic;
    const int side = distance >= 1 ? 0 : 1;
    const int begin = (real ? 0 : kReal) + lane, end = real ? kReal : kReal + used;
    double total = line<kLanes>(f, side, 0, 1, begin, end);
    if (side && lane == 0) total += mean_field_term(f, 0);
    if (f.quadratic < 0) {
      const double beyond = (middle + sqrt(discriminant)) / (-2 * f.quadratic) - n;
      const int right = beyond >= 1 ? 0 : 1;
      const double back = line<kLanes>(f, right, n, -1, begin, end);
      const double last = right && lane == 0 ? mean_field_term(f, n) : 0.0;
      total += n % 2 ? -back - last : back + last;  // P(n - z) = (-1)^(n + 1) P(z)
    }
    return total;
  }
};

// The nodes of one thread; `advance` goes from n to n + 1.
struct MeanFieldTable {
  int n, complex_used;
  MeanFieldNodes nodes;

  void start() {
    n = 0;
    complex_used = MeanFieldNodes::kComplex;
    nodes.start<1>(0);
  }
  void advance() {
    nodes.advance<1>(++n, complex_used, 0);
    complex_used = nodes.still_used(complex_used);
  }
  double sum(const MeanField& f) const { return nodes.part<1>(f, n, complex_used, 0); }
};

}  // namespace oasis
