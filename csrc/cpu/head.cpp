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

template <typename T>
void block_row(const HeadBlock& b, int64_t t) {
  using V = typename Vector<T>::type;
  constexpr int lanes = Vector<T>::lanes;
  T* z = static_cast<T*>(b.logits) + t * b.row_stride;
  const T* bias = static_cast<const T*>(b.bias);
  const int64_t n = b.columns, whole = n / lanes * lanes;
  const T scale = T(b.scale), cap = T(b.softcap), inverse_cap = cap > 0 ? T(1) / cap : T(0);

  if (bias || scale != T(1))
    for (int64_t v = 0; v < n; ++v) z[v] = (z[v] + (bias ? bias[v] : T(0))) * scale;
  if (cap > 0)
    for (int64_t v = 0; v < n; ++v) z[v] = cap * T(::tanh(double(z[v] * inverse_cap)));

  // The label's column stays out of every sum; its logit is kept.
  const int64_t label = b.labels[t] - b.first;
  const bool here = label >= 0 && label < n;
  if (here) {
    b.label_logit[t] = double(z[label]);
    z[label] = -T(HUGE_VAL);
  }
  V top = V{} - T(HUGE_VAL);
  for (int64_t v = 0; v < whole; v += lanes) top = vmax(load<V>(z + v), top);
  double maximum = -HUGE_VAL;
  for (int i = 0; i < lanes; ++i) maximum = double(top[i]) > maximum ? double(top[i]) : maximum;
  for (int64_t v = whole; v < n; ++v) maximum = double(z[v]) > maximum ? double(z[v]) : maximum;
  b.factor[t] = 1;
  if (maximum > b.maximum[t]) b.maximum[t] = maximum;
  if (maximum > b.peak[t] + kSlack || (b.peak[t] == -HUGE_VAL && maximum > -HUGE_VAL)) {
    // The online-softmax merge: earlier results shrink by exp(old peak - new peak).
    const double grown = maximum - b.peak[t], factor = ::exp(-grown);
    b.factor[t] = factor;
    if (b.sum[t] > 0) b.weighted[t] = factor * (b.weighted[t] + grown * b.sum[t]);
    b.sum[t] *= factor;
    b.squares[t] *= factor * factor;
    b.peak[t] = maximum;
  }
  if (here) z[label] = T(b.peak[t] > -HUGE_VAL ? b.peak[t] : 0);  // any finite value; zeroed below
  const T peak = T(b.peak[t] > -HUGE_VAL ? b.peak[t] : 0);

  V sums{}, weights{}, squares{};
  for (int64_t v = 0; v < n; v += lanes) {
    V x = V{} + peak;
    const int64_t rest = n - v;
    if (rest >= lanes)
      x = load<V>(z + v);
    else
      for (int i = 0; i < rest; ++i) x[i] = z[v + i];
    V e = vexp(x - peak);
    if (here && label >= v && label < v + lanes) e[int(label - v)] = T(0);
    if (rest < lanes)
      for (int i = int(rest); i < lanes; ++i) e[i] = T(0);
    sums += e;
    weights += e > T(0) ? e * (peak - x) : V{};  // a logit of -inf weighs nothing
    squares += e * e;
    if (cap > 0) {  // chain rule of the soft cap
      const V u = x * inverse_cap;
      e *= T(1) - u * u;
    }
    if (rest >= lanes)
      store(z + v, e);
    else
      for (int i = 0; i < rest; ++i) z[v + i] = e[i];
  }
  b.sum[t] += horizontal<T>(sums);
  b.weighted[t] += horizontal<T>(weights);
  b.squares[t] += horizontal<T>(squares);
  T* gathers = static_cast<T*>(b.gathers) + t * b.distinct + b.label_first;
  for (int64_t k = 0; k < b.label_count; ++k) gathers[k] = z[b.label_columns[k]];
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
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < b.tokens; ++t) {
    if (float64)
      block_row<double>(b, t);
    else
      block_row<float>(b, t);
  }
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
