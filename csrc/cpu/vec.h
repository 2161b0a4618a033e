// Fixed-width vectors by the compiler's vector extension: one source for SSE2, AVX2, AVX-512, NEON.
#pragma once
#include <cmath>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace oasis {
namespace OASIS_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  static constexpr int lanes = kVectorBytes / int(sizeof(T));
};
using vf = Vector<float>::type;
using vd = Vector<double>::type;
using vi = Vector<int32_t>::type;

template <typename V, typename T>
static inline V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <typename V, typename T>
static inline void store(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}
template <typename T>
static inline double horizontal(typename Vector<T>::type v) {
  double s = 0;
  for (int i = 0; i < Vector<T>::lanes; ++i) s += double(v[i]);
  return s;
}
template <typename V>
static inline V vmax(V a, V b) {
  return a > b ? a : b;
}

template <typename M>
static inline bool any_lane(M mask) {
  bool any = false;
  for (int i = 0; i < int(sizeof(M) / sizeof(mask[0])); ++i) any |= mask[i] != 0;
  return any;
}
static inline bool any_greater(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)(a > b)) != 0;
#else
  return any_lane(a > b);
#endif
}
static inline bool any_greater(vd a, vd b) { return any_lane(a > b); }

// exp of single precision, |relative error| < 2e-7, for x <= 88; below -87.3 it is 0.
// Cephes' expf: x = n ln 2 + r, a degree-6 polynomial in r, exponent bits added.
static inline vf vexp(vf x) {
  const vf given = x;
  const vf low = x < -87.3f ? vf{} + 1.0f : vf{};
  x = x < -87.3f ? vf{} - 87.3f : x;
  const vf magic = vf{} + 12582912.0f;  // 1.5 x 2^23: adding it rounds to the nearest integer
  const vf t = x * 1.44269504088896341f + magic;
  const vf n = t - magic;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = vf{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const vi exponent = ((vi)t - (vi)magic) << 23;
  const vf result = (vf)((vi)p + exponent);
  // A NaN's own digits would end up in the exponent.
  return given == given ? (low > 0.5f ? vf{} : result) : given;
}
static inline vd vexp(vd x) {
  vd y;
  for (int i = 0; i < Vector<double>::lanes; ++i) y[i] = std::exp(x[i]);
  return y;
}

// 1 / sqrt(x) to about 1 ulp, for x > 0.
static inline vd rsqrt(vd x) {
#if defined(__AVX512F__)
  // A 14-bit estimate and two Newton steps: half the time of a square root and a division.
  vd y = (vd)_mm512_rsqrt14_pd((__m512d)x);
  const vd half = x * 0.5;
  y = y * (1.5 - half * y * y);
  y = y + y * (0.5 - half * y * y);
  return y;
#else
  vd y;
  for (int i = 0; i < Vector<double>::lanes; ++i) y[i] = 1.0 / std::sqrt(x[i]);
  return y;
#endif
}

}  // namespace OASIS_ISA
}  // namespace oasis
