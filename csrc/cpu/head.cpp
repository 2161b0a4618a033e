// The epilogue of head_gram (docs/method.md 1.1, 1.2): what happens to a block of logits between
// the two matrix products, and the reduction of token products to the samples' Gram matrix.
#include <cfloat>

#include "cpu/kernels.h"
#include "cpu/vec.h"

namespace oasis {
namespace OASIS_ISA {
namespace {

// exp(z - peak) may exceed 1 by this much before everything is rescaled: relative precision does
// not change with the scale, e^(2 x 16) x V is far from overflow, and rescaling touches T^2
// numbers.
constexpr double kSlack = 16;

// Vocabulary entries whose exponentials are added in the logits' own type before the sum is
// widened, and those looked at together for a new maximum.
constexpr int64_t kRun = 256;
constexpr int kRows = 4;
// Entries asked for ahead of time: lanes of one entry and the next are T numbers apart, further
// than the processor looks ahead by itself.
constexpr int64_t kAhead = 32;

// A vector's worth of tokens: the first `live` lanes. Logits of one vocabulary entry lie side by
// side, so a lane is a token, and its sums run over the vocabulary in the order of the entries
// however many threads there are.
//
// Sums are taken relative to the peak of the logits. With a soft cap an entry E is p f, f the chain
// factor, and the largest p need not have the largest p f; so entries are relative to a running
// maximum of their own, the entries' peak. Without a soft cap the two are one.
template <typename T, bool kWhole, bool kCap>
struct TokenLanes {
  using V = typename Vector<T>::type;
  static constexpr int lanes = Vector<T>::lanes;
  const HeadBlock& b;
  const int64_t first;
  const int live;
  T* const z;
  T* const sketch;                     // of these tokens, rows kPanel apart
  V peak, limit, top;                  // of the logits, after the cap
  V raw_top;                           // before the cap; used with one alone
  V entry_peak, entry_limit, highest;  // of log(p f); used with a soft cap alone
  V sums, weights, squares;

  TokenLanes(const HeadBlock& block, int64_t begin)
      : b(block),
        first(begin),
        live(kWhole ? lanes : int(block.tokens - begin)),
        z(static_cast<T*>(block.logits) + begin),
        sketch(block.sketches ? static_cast<T*>(block.sketch) +
                                    begin / kPanel * block.sketch_rows * kPanel + begin % kPanel
                              : nullptr) {
    top = raw_top = highest = V{} - T(HUGE_VAL);
    sums = weights = squares = V{};
    peak = entry_peak = V{};
    limit = entry_limit = V{} + T(HUGE_VAL);
    for (int i = 0; i < live; ++i) refresh(i);
  }

  void refresh(int i) {
    const double p = b.peak[first + i], r = b.entry_peak[first + i];
    peak[i] = T(p > -HUGE_VAL ? p : 0);
    limit[i] = T(p > -HUGE_VAL ? p + kSlack : p);
    entry_peak[i] = T(r > -HUGE_VAL ? r : 0);
    entry_limit[i] = T(r > -HUGE_VAL ? r + kSlack : r);
  }
  V get(int64_t v) const {
    if (kWhole) return load<V>(z + v * b.column_stride);
    V x = V{} - T(HUGE_VAL);
    for (int i = 0; i < live; ++i) x[i] = z[v * b.column_stride + i];
    return x;
  }
  void put(int64_t v, V x) {
    if (kWhole) return store(z + v * b.column_stride, x);
    for (int i = 0; i < live; ++i) z[v * b.column_stride + i] = x[i];
  }

  // Bias and scale; then the label's column leaves every sum, its logit (before the cap) is kept.
  void prepare() {
    const T* bias = static_cast<const T*>(b.bias);
    const T scale = T(b.scale);
    if (bias || scale != T(1))
      for (int64_t v = 0; v < b.columns; ++v) put(v, (get(v) + (bias ? bias[v] : T(0))) * scale);
    if (kCap && bias) {
      // A bias of -inf ends at -cap, not at nothing: below, -inf means the label's column.
      const V lowest = V{} - T(sizeof(T) == sizeof(double) ? DBL_MAX : FLT_MAX);
      for (int64_t v = 0; v < b.columns; ++v) put(v, vmax(lowest, get(v)));  // NaN stays
    }
    for (int i = 0; i < live; ++i) {
      const int64_t v = b.labels[first + i] - b.first;
      if (v < 0 || v >= b.columns) continue;
      T& x = z[v * b.column_stride + i];
      b.label_logit[first + i] = double(x);
      x = -T(HUGE_VAL);
    }
  }

  void flush() {
    for (int i = 0; i < live; ++i) {
      b.sum[first + i] += double(sums[i]);
      b.weighted[first + i] += double(weights[i]);
      b.squares[first + i] += double(squares[i]);
    }
    sums = weights = squares = V{};
  }

  // The online-softmax merge: earlier results shrink by exp(old maximum - new maximum).
  void raise(int64_t seen) {
    flush();
    for (int i = 0; i < live; ++i) {
      const int64_t t = first + i;
      const T entry_top = kCap ? highest[i] : top[i];
      if (entry_top > (kCap ? entry_limit[i] : limit[i])) {
        const double factor = ::exp(b.entry_peak[t] - double(entry_top));
        b.factor[t] *= factor;
        b.entry_peak[t] = double(entry_top);
        for (int64_t v = 0; v < seen; ++v) z[v * b.column_stride + i] *= T(factor);
        if (b.sketches)
          for (int64_t r = 0; r < b.sketch_rows; ++r) sketch[r * kPanel + i] *= T(factor);
      }
      if (top[i] > limit[i]) {
        const double grown = double(top[i]) - b.peak[t], factor = ::exp(-grown);
        if (b.sum[t] > 0) b.weighted[t] = factor * (b.weighted[t] + grown * b.sum[t]);
        b.sum[t] *= factor;
        b.squares[t] *= factor * factor;
        b.peak[t] = double(top[i]);
      }
      refresh(i);
    }
  }

  // Logits c = cap tanh(x / cap), and c + log f with log f = log(1 - tanh^2) in a form that never
  // cancels: of a saturated logit 1 - (c / cap)^2 has no digit left.
  void bend(V x, double* capped, double* entries) const {
    for (int i = 0; i < lanes; ++i) {
      const double r = double(x[i]) / b.softcap;
      if (x[i] == -HUGE_VAL) {  // the label's column
        capped[i] = entries[i] = x[i];
        continue;
      }
      const double u = ::expm1(-2 * ::fabs(r));  // in (-1, 0]
      capped[i] = ::copysign(b.softcap * u / (2 + u), r);
      entries[i] = capped[i] + 2 * (M_LN2 - ::fabs(r) - ::log(2 + u));
    }
  }
  static V narrow(const double* x) {
    V y;
    for (int i = 0; i < lanes; ++i) y[i] = T(x[i]);
    return y;
  }
  static V difference(const double* x, V y) {  // before it is rounded
    V d;
    for (int i = 0; i < lanes; ++i) d[i] = T(x[i] - double(y[i]));
    return d;
  }

  template <int kCount>
  void exponentiate(int64_t v) {
    V x[kCount];
    double capped[kCount][lanes], entries[kCount][lanes];  // used with a soft cap alone
    for (int k = 0; k < kCount; ++k) __builtin_prefetch(z + (v + kAhead + k) * b.column_stride, 1);
    for (int k = 0; k < kCount; ++k) {
      x[k] = get(v + k);
      if (kCap) {
        bend(x[k], capped[k], entries[k]);
        raw_top = vmax(x[k], raw_top);
        x[k] = narrow(capped[k]);
        highest = vmax(narrow(entries[k]), highest);
      }
      top = vmax(x[k], top);
    }
    if (any_greater(top, limit) || (kCap && any_greater(highest, entry_limit))) raise(v);
    for (int k = 0; k < kCount; ++k) {
      const V above = kCap ? difference(capped[k], peak) : x[k] - peak;
      const V e = vexp(above);
      sums += e;
      weights -= e > T(0) ? e * above : V{};  // a logit of -inf weighs nothing
      squares += e * e;
      const V entry = kCap ? vexp(difference(entries[k], entry_peak)) : e;
      put(v + k, entry);
      add_to_sketches(b.first + v + k, entry);
    }
  }

  // A panel is padded to whole vectors, and entries of absent tokens are zero.
  void add_to_sketches(int64_t position, V entry) {
    for (int64_t k = 0; k < b.sketches; ++k) {
      const int64_t at = k * b.vocabulary + position;
      T* sums = sketch + int64_t(b.buckets[at]) * kPanel;
      store(sums, load<V>(sums) + entry * static_cast<const T*>(b.signs)[at]);
    }
  }

  void run() {
    for (int i = 0; i < live; ++i) b.factor[first + i] = 1;
    prepare();
    for (int64_t begin = 0; begin < b.columns; begin += kRun) {
      const int64_t end = begin + kRun < b.columns ? begin + kRun : b.columns;
      int64_t v = begin;
      for (; v + kRows <= end; v += kRows) exponentiate<kRows>(v);
      for (; v < end; ++v) exponentiate<1>(v);
      flush();
    }
    for (int i = 0; i < live; ++i) gather(i);
    const V maximum = kCap ? raw_top : top;
    for (int i = 0; i < live; ++i)
      if (double(maximum[i]) > b.maximum[first + i]) b.maximum[first + i] = double(maximum[i]);
  }

  // Entries at everybody's labels: those of earlier blocks shrink as the products do, before those
  // of this block, which are relative to the new peak already, come in.
  void gather(int i) {
    T* row = static_cast<T*>(b.gathers) + (first + i) * b.distinct;
    const T factor = T(b.factor[first + i]);
    if (factor != 1)
      for (int64_t k = 0; k < b.distinct; ++k) row[k] *= factor;
    for (int64_t k = 0; k < b.label_count; ++k)
      row[b.label_first + k] = z[b.label_columns[k] * b.column_stride + i];
  }
};

template <typename T, bool kCap>
void block(const HeadBlock& b) {
  constexpr int lanes = Vector<T>::lanes;
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < b.tokens; t += lanes) {
    if (t + lanes <= b.tokens)
      TokenLanes<T, true, kCap>(b, t).run();
    else
      TokenLanes<T, false, kCap>(b, t).run();
  }
}

template <typename T>
void rescale(T* products, const double* factor, int64_t tokens) {
#pragma omp parallel for schedule(dynamic, 16)
  for (int64_t t = 0; t < tokens; ++t)
    // The lower triangle alone is used, so only s <= t needs its factors.
    for (int64_t s = 0; s <= t; ++s) products[t * tokens + s] *= T(factor[t] * factor[s]);
}

// K_ij = sum over tokens t of i, s of j of <delta_t, delta_s> <h_t, h_s> (docs/method.md 1.1).
template <typename T>
double pair(const HeadReduce& r, int64_t i, int64_t j) {
  const T* products = static_cast<const T*>(r.products);
  const T* inner = static_cast<const T*>(r.inner);
  const T* gathers = static_cast<const T*>(r.gathers);
  double sum = 0;
  for (int64_t t = r.offsets[i]; t < r.offsets[i + 1]; ++t) {
    const T* mine = gathers + t * r.distinct;
    const double coefficient = r.coefficient[t], label = r.label[t];
    const int64_t last = i == j ? t : r.offsets[j + 1] - 1;
    double row = 0;
    for (int64_t s = r.offsets[j]; s <= last; ++s) {
      const int64_t y_t = r.label_index[t], y_s = r.label_index[s];
      double d = double(products[t * r.tokens + s]) * coefficient * r.coefficient[s] -
                 r.label[s] * coefficient * double(mine[y_s]) -
                 label * r.coefficient[s] * double(gathers[s * r.distinct + y_t]);
      if (y_t == y_s) d += label * r.label[s];
      d *= double(inner[t * r.tokens + s]);
      row += i == j && s < t ? 2 * d : d;
    }
    sum += row;
  }
  return sum;
}

}  // namespace

void head_block(const HeadBlock& b, bool float64) {
  if (float64)
    b.softcap > 0 ? block<double, true>(b) : block<double, false>(b);
  else
    b.softcap > 0 ? block<float, true>(b) : block<float, false>(b);
}

void head_rescale(void* products, const double* factor, int64_t tokens, bool float64) {
  bool any = false;
  for (int64_t t = 0; t < tokens; ++t) any |= factor[t] != 1;
  if (!any) return;
  if (float64)
    rescale(static_cast<double*>(products), factor, tokens);
  else
    rescale(static_cast<float*>(products), factor, tokens);
}

void head_reduce(const HeadReduce& r, bool float64) {
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = r.samples - 1; i >= 0; --i)
    for (int64_t j = 0; j <= i; ++j) {
      const double k = float64 ? pair<double>(r, i, j) : pair<float>(r, i, j);
      r.gram[i * r.samples + j] = r.gram[j * r.samples + i] = k;
    }
}

}  // namespace OASIS_ISA
}  // namespace oasis
