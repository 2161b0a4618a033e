// The epilogue of head_gram (docs/method.md 1.1, 1.2): what happens to a block of logits between
// the two matrix products, and the reduction of token products to the samples' Gram matrix.
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
template <typename T, bool kWhole>
struct TokenLanes {
  using V = typename Vector<T>::type;
  static constexpr int lanes = Vector<T>::lanes;
  const HeadBlock& b;
  const int64_t first;
  const int live;
  T* const z;
  V peak, limit, top, sums, weights, squares;

  TokenLanes(const HeadBlock& block, int64_t begin)
      : b(block),
        first(begin),
        live(kWhole ? lanes : int(block.tokens - begin)),
        z(static_cast<T*>(block.logits) + begin) {
    top = V{} - T(HUGE_VAL);
    sums = weights = squares = V{};
    peak = V{};
    limit = V{} + T(HUGE_VAL);
    for (int i = 0; i < live; ++i) refresh(i);
  }

  void refresh(int i) {
    const double p = b.peak[first + i];
    peak[i] = T(p > -HUGE_VAL ? p : 0);
    limit[i] = T(p > -HUGE_VAL ? p + kSlack : p);
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

  // Bias, scale and soft cap; then the label's column leaves every sum, its logit is kept.
  void prepare() {
    const T* bias = static_cast<const T*>(b.bias);
    const T scale = T(b.scale), cap = T(b.softcap);
    if (bias || scale != T(1))
      for (int64_t v = 0; v < b.columns; ++v) put(v, (get(v) + (bias ? bias[v] : T(0))) * scale);
    if (cap > 0)
      for (int64_t v = 0; v < b.columns; ++v)
        for (int i = 0; i < live; ++i) {
          T& x = z[v * b.column_stride + i];
          x = cap * T(::tanh(double(x * (T(1) / cap))));
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

  // The online-softmax merge: earlier results shrink by exp(old peak - new peak).
  void raise(int64_t seen) {
    flush();
    for (int i = 0; i < live; ++i) {
      if (!(top[i] > limit[i])) continue;
      const int64_t t = first + i;
      const double grown = double(top[i]) - b.peak[t], factor = ::exp(-grown);
      b.factor[t] *= factor;
      if (b.sum[t] > 0) b.weighted[t] = factor * (b.weighted[t] + grown * b.sum[t]);
      b.sum[t] *= factor;
      b.squares[t] *= factor * factor;
      b.peak[t] = double(top[i]);
      for (int64_t v = 0; v < seen; ++v) z[v * b.column_stride + i] *= T(factor);
      refresh(i);
    }
  }

  template <int kCount>
  void exponentiate(int64_t v) {
    V x[kCount];
    for (int k = 0; k < kCount; ++k) __builtin_prefetch(z + (v + kAhead + k) * b.column_stride, 1);
    for (int k = 0; k < kCount; ++k) top = vmax(x[k] = get(v + k), top);
    if (any_greater(top, limit)) raise(v);
    const T cap = T(b.softcap), inverse_cap = cap > 0 ? T(1) / cap : T(0);
    for (int k = 0; k < kCount; ++k) {
      V e = vexp(x[k] - peak);
      sums += e;
      weights += e > T(0) ? e * (peak - x[k]) : V{};  // a logit of -inf weighs nothing
      squares += e * e;
      if (cap > 0) {  // chain rule of the soft cap
        const V u = x[k] * inverse_cap;
        e = e == T(0) ? e : e * (T(1) - u * u);
      }
      put(v + k, e);
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
    T* gathers = static_cast<T*>(b.gathers) + first * b.distinct + b.label_first;
    for (int64_t k = 0; k < b.label_count; ++k)
      for (int i = 0; i < live; ++i)
        gathers[i * b.distinct + k] = z[b.label_columns[k] * b.column_stride + i];
    for (int i = 0; i < live; ++i)
      if (double(top[i]) > b.maximum[first + i]) b.maximum[first + i] = double(top[i]);
  }
};

template <typename T>
void block(const HeadBlock& b) {
  constexpr int lanes = Vector<T>::lanes;
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < b.tokens; t += lanes) {
    if (t + lanes <= b.tokens)
      TokenLanes<T, true>(b, t).run();
    else
      TokenLanes<T, false>(b, t).run();
  }
}

template <typename T>
void rescale(T* products, T* gathers, const double* factor, int64_t tokens, int64_t distinct) {
#pragma omp parallel for schedule(dynamic, 16)
  for (int64_t t = 0; t < tokens; ++t) {
    // The lower triangle alone is used, so only s <= t needs its factors.
    for (int64_t s = 0; s <= t; ++s) products[t * tokens + s] *= T(factor[t] * factor[s]);
    if (factor[t] != 1)
      for (int64_t u = 0; u < distinct; ++u) gathers[t * distinct + u] *= T(factor[t]);
  }
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
    const double tilt = r.tilt[t], label = r.label[t];
    const int64_t last = i == j ? t : r.offsets[j + 1] - 1;
    double row = 0;
    for (int64_t s = r.offsets[j]; s <= last; ++s) {
      const int64_t y_t = r.label_index[t], y_s = r.label_index[s];
      double d = double(products[t * r.tokens + s]) * tilt * r.tilt[s] -
                 r.label[s] * tilt * double(mine[y_s]) -
                 label * r.tilt[s] * double(gathers[s * r.distinct + y_t]);
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
    block<double>(b);
  else
    block<float>(b);
}

void head_rescale(void* products, void* gathers, const double* factor, int64_t tokens,
                  int64_t distinct, bool float64) {
  bool any = false;
  for (int64_t t = 0; t < tokens; ++t) any |= factor[t] != 1;
  if (!any) return;
  if (float64)
    rescale(static_cast<double*>(products), static_cast<double*>(gathers), factor, tokens,
            distinct);
  else
    rescale(static_cast<float*>(products), static_cast<float*>(gathers), factor, tokens, distinct);
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
