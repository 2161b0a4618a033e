// SIREN (docs/method.md 2): greedy picks by informativeness less what the picked samples already
// teach.
#include "cpu/greedy.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"
#include "oasis/numbers.h"

namespace oasis {
namespace OASIS_ISA {

int64_t mean_field(const double* gram, const double* score, int64_t n, double floor,
                   double* adjusted, int64_t* order);

namespace {

constexpr int kLowBits = 8, kLow = 1 << kLowBits;  // table in L1; a loop runs over the higher bits
constexpr int kGroup = 64;                         // high blocks whose partial sums are kept apart

// Signed reciprocals (-1)^(k+1) / (k+1), k the size of U before the newest sample joins.
struct Coefficients {
  double table[kMaxExact - kLowBits][kLow];
  Coefficients() {
    for (int high = 0; high < kMaxExact - kLowBits; ++high)
      for (int low = 0; low < kLow; ++low) {
        const int k = high + __builtin_popcount(unsigned(low));
        table[high][low] = (k % 2 ? 1.0 : -1.0) / (k + 1);
      }
  }
};

// Tables over the subsets of H, extended by doubling as H grows (docs/method.md 2.1). A subset is a
// bit pattern over H in picking order; what is a plain sum over its members is split in low + high.
struct Subsets {
  const int64_t subsets, high, groups;
  const Scratch<double> norms, block;
  double* squared_norm;  // [2^m] ||S_U||^2
  double low_score[kLow] = {}, low_norm[kLow] = {}, low_inner[kLow] = {};
  double *high_score, *high_norm, *high_inner, *high_term, *partial;
  int m = 0;

  explicit Subsets(int64_t n)
      : subsets(int64_t(1) << (n > 2 ? n - 2 : 0)),
        high(subsets > kLow ? subsets >> kLowBits : 1),
        groups((high + kGroup - 1) / kGroup),
        norms(subsets < 8 ? 8 : subsets),
        block(groups * kLow + 4 * high) {
    if (!allocated()) return;
    squared_norm = norms.get();
    partial = block.get();
    high_score = partial + groups * kLow;
    high_norm = high_score + high;
    high_inner = high_norm + high;
    high_term = high_inner + high;
    squared_norm[0] = high_score[0] = high_norm[0] = high_inner[0] = 0;
  }
  bool allocated() const { return norms && block; }
};

// table[U] for all U by doubling: table[U + bit u] = table[U] + value[u].
void subset_sums(double* table, const double* value, int bits) {
  table[0] = 0;
  for (int u = 0; u < bits; ++u)
    for (int64_t i = 0, size = int64_t(1) << u; i < size; ++i)
      table[size + i] = table[i] + value[u];
}

// sums[u] = sum of table over the subsets that hold u, by folding the table in half once a bit.
// Returns the sum of the whole table; the table is consumed.
double marginals(double* table, int bits, double* sums) {
  for (int u = bits - 1; u >= 0; --u) {
    const int64_t size = int64_t(1) << u;
    double with = 0;
    for (int64_t i = 0; i < size; ++i) {
      with += table[size + i];
      table[i] += table[size + i];
    }
    sums[u] = with;
  }
  return table[0];
}

// Visits the subsets U + {a}, U in high blocks [begin, end): stores ||S||^2 (unless this is the
// last extension), adds the terms into sums[low] and sets high_term.
template <bool Keep>
void visit(const Subsets& t, const Coefficients& c, double informativeness, double norm,
           int64_t begin, int64_t end, double* sums) {
  const int64_t low = t.m < kLowBits ? int64_t(1) << t.m : kLow;
  const int64_t subsets = int64_t(1) << t.m;
  constexpr int lanes = Vector<double>::lanes;
  for (int64_t block = begin; block < end; ++block) {
    const double* coefficient = c.table[__builtin_popcountll(uint64_t(block))];
    double* squared = t.squared_norm + block * low;
    const double score = t.high_score[block] + informativeness;
    const double length = t.high_norm[block] + norm;
    const double inner = 2 * t.high_inner[block] + norm * norm;
    vd total{};
    for (int64_t i = 0; i < low; i += lanes) {
      const vd s = load<vd>(squared + i) + (load<vd>(t.low_inner + i) * 2.0 + inner);
      if (Keep) store(t.squared_norm + subsets + block * low + i, s);
      const vd lengths = load<vd>(t.low_norm + i) + length;
      const vd bound = lengths * lengths * kVanishing;
      const vd safe = s > bound ? s : vd{} + 1.0;
      vd term = load<vd>(coefficient + i) * (load<vd>(t.low_score + i) + score) * rsqrt(safe);
      term = s > bound ? term : vd{};
      store(sums + i, load<vd>(sums + i) + term);
      total += term;
    }
    t.high_term[block] = horizontal<double>(total);
  }
}

// Adds sample `a` to H: w += the marginals of the new terms, w_new = their sum.
template <bool Keep>
void extend(Subsets& t, const Coefficients& c, const double* inner_with_a, double informativeness,
            double norm, double* w) {
  const int low_bits = t.m < kLowBits ? t.m : kLowBits, high_bits = t.m - low_bits;
  const int64_t low = int64_t(1) << low_bits, high = int64_t(1) << high_bits;
  subset_sums(t.low_inner, inner_with_a, low_bits);
  subset_sums(t.high_inner, inner_with_a + low_bits, high_bits);

  double sums[kMaxExact];
  if (low < Vector<double>::lanes) {  // the first few picks, one subset at a time
    for (int64_t u = 0; u < low; ++u) {
      const double s = t.squared_norm[u] + 2 * t.low_inner[u] + norm * norm;
      const double length = t.low_norm[u] + norm;
      if (Keep) t.squared_norm[low + u] = s;
      const bool zero = !(s > kVanishing * length * length);
      t.partial[u] = zero ? 0 : c.table[0][u] * (t.low_score[u] + informativeness) / ::sqrt(s);
    }
  } else {
    const int64_t groups = (high + kGroup - 1) / kGroup;
    // Partial sums per fixed group, added in order: the result does not depend on the threads.
#pragma omp parallel for schedule(static) if (groups > 32)
    for (int64_t g = 0; g < groups; ++g) {
      double* partial = t.partial + g * kLow;
      for (int64_t i = 0; i < low; ++i) partial[i] = 0;
      const int64_t end = (g + 1) * kGroup < high ? (g + 1) * kGroup : high;
      visit<Keep>(t, c, informativeness, norm, g * kGroup, end, partial);
    }
    for (int64_t g = 1; g < groups; ++g)
      for (int64_t i = 0; i < low; ++i) t.partial[i] += t.partial[g * kLow + i];
  }
  const double total = marginals(t.partial, low_bits, sums);
  if (high_bits) marginals(t.high_term, high_bits, sums + low_bits);
  for (int u = 0; u < t.m; ++u) w[u] += sums[u];
  w[t.m] = total;

  if (Keep) {  // the plain sums gain a bit
    const int64_t size = t.m < kLowBits ? low : high;
    double* score = t.m < kLowBits ? t.low_score : t.high_score;
    double* length = t.m < kLowBits ? t.low_norm : t.high_norm;
    for (int64_t i = 0; i < size; ++i) {
      score[size + i] = score[i] + informativeness;
      length[size + i] = length[i] + norm;
    }
  }
  ++t.m;
}

// Divides the Gram matrix by its largest diagonal entry, and the scores by the largest: copies of
// the largest gradient come out as exactly zero.
int64_t exact(double* gram, double* score, int64_t n, double floor, double* adjusted,
              int64_t* order) {
  static const Coefficients coefficients;
  Subsets table(n);
  if (!table.allocated()) return -1;
  double largest = 0, top = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = gram[i * n + i] > largest ? gram[i * n + i] : largest;
    top = score[i] > top ? score[i] : top;
  }
  if (!(largest > 0)) largest = 1;
  if (!(top > 0)) top = 1;
  for (int64_t i = 0; i < n * n; ++i) gram[i] /= largest;
  double w[kMaxExact], inner[kMaxExact], inverse_norm[kMaxExact];
  for (int64_t i = 0; i < n; ++i) score[i] /= top;
  for (int64_t i = 0; i < n; ++i)
    inverse_norm[i] = gram[i * n + i] > 0 ? 1 / ::sqrt(gram[i * n + i]) : 0;
  const auto join = [&](int64_t a, int64_t m, const bool* picked) {
    for (int64_t u = 0; u < m; ++u) inner[u] = gram[order[u] * n + a];
    const double norm = ::sqrt(gram[a * n + a]);
    if (m + 2 < n)
      extend<true>(table, coefficients, inner, score[a], norm, w);
    else
      extend<false>(table, coefficients, inner, score[a], norm, w);
    for (int64_t i = 0; i < n; ++i) {
      if (picked[i]) continue;
      double overlap = 0;
      for (int64_t u = 0; u <= m; ++u) overlap += w[u] * gram[order[u] * n + i];
      adjusted[i] = score[i] + inverse_norm[i] * overlap;
    }
  };
  const int64_t picks = greedy(score, n, floor / top, adjusted, order, join);
  for (int64_t i = 0; i < n; ++i) adjusted[i] *= top;
  return picks;
}

int64_t pairwise(const double* gram, const double* score, int64_t n, double floor, double* adjusted,
                 int64_t* order) {
  return greedy(score, n, floor, adjusted, order, [&](int64_t a, int64_t, const bool* picked) {
    for (int64_t i = 0; i < n; ++i) {
      if (picked[i]) continue;
      adjusted[i] -= cosine(gram[a * n + i], gram[i * n + i], gram[a * n + a]) * score[a];
    }
  });
}

// Pivoted Cholesky: the Schur complement's diagonal is what H does not span (docs/method.md 2.3).
int64_t residual(const double* gram, const double* score, int64_t n, double ridge, double floor,
                 double* adjusted, int64_t* order) {
  const Scratch<double> rows(n * n);  // row m: pick m
  if (!rows) return -1;
  double* const factor = rows.get();
  double lambda = 0;
  for (int64_t i = 0; i < n; ++i) lambda += gram[i * n + i];
  lambda *= ridge / double(n);
  const int64_t picks =
      greedy(score, n, floor, adjusted, order, [&](int64_t a, int64_t m, const bool* picked) {
        const double pivot = adjusted[a] + lambda;
        double* row = factor + m * n;
        // A pivot lost in rounding spans nothing new.
        const bool spans = pivot > 1e-13 * gram[a * n + a];
        const double inverse = spans ? 1 / ::sqrt(pivot) : 0;
        for (int64_t i = 0; i < n; ++i) row[i] = gram[a * n + i];
        for (int64_t u = 0; u < m; ++u) {
          const double* earlier = factor + u * n;
          const double f = earlier[a];
          for (int64_t i = 0; i < n; ++i) row[i] -= f * earlier[i];
        }
        for (int64_t i = 0; i < n; ++i) {
          row[i] *= inverse;
          if (picked[i]) continue;
          adjusted[i] -= row[i] * row[i];
          if (!(adjusted[i] > 0)) adjusted[i] = 0;
        }
      });
  return picks;
}

int64_t none(const double* score, int64_t n, double floor, double* adjusted, int64_t* order) {
  return greedy(score, n, floor, adjusted, order, [](int64_t, int64_t, const bool*) {});
}

int64_t scaled(double* gram, double* score, int64_t n, Rule rule, double ridge, double floor,
               double* adjusted, int64_t* order) {
  switch (rule) {
    case Rule::exact:
      return exact(gram, score, n, floor, adjusted, order);
    case Rule::mean_field:
      return mean_field(gram, score, n, floor, adjusted, order);
    case Rule::pairwise:
      return pairwise(gram, score, n, floor, adjusted, order);
    case Rule::residual:
      return residual(gram, score, n, ridge, floor, adjusted, order);
    case Rule::none:
      break;
  }
  return none(score, n, floor, adjusted, order);
}

}  // namespace

// Each rule sees squared norms near 1, of which sums and products stay far from the ends of
// float64; units that are powers of two change no digit of the result.
int64_t siren(double* gram, double* score, int64_t n, Rule rule, double ridge, double floor,
              double* adjusted, int64_t* order) {
  if (rule == Rule::none) return none(score, n, floor, adjusted, order);
  double largest = 0, top = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = gram[i * n + i] > largest ? gram[i * n + i] : largest;
    top = score[i] > top ? score[i] : top;
  }
  const double square = near_one(largest), unit = near_one(top);
  for (int64_t i = 0; i < n * n; ++i) gram[i] *= square;
  for (int64_t i = 0; i < n; ++i) score[i] *= unit;
  const int64_t picks = scaled(gram, score, n, rule, ridge, floor * unit, adjusted, order);
  for (int64_t i = 0; i < n; ++i) adjusted[i] /= unit;
  return picks;
}

}  // namespace OASIS_ISA
}  // namespace oasis
