// Gram matrix of given gradients: one pass over memory (N rows, P columns, N << P).
//
// Columns are cut into chunks that fit the caches; within a chunk every pair of rows is multiplied
// from there, so each gradient is read from memory once. Floats are multiplied and summed in
// single precision over runs of kRun products a lane, then flushed into float64 sums. Error of an
// entry: at most (kRun + 1) 2^-24 sum_p |g_ip g_jp| = 2e-6 of it, about 1e-7 in practice.
// float64 input is summed in float64 throughout.
#include <cstdlib>

#include "cpu/kernels.h"
#include "cpu/vec.h"

namespace oasis {
namespace OASIS_ISA {
namespace {

constexpr int kRun = 32;
constexpr int kGroups = 64;  // fixed partition of the columns: results do not depend on threads
#if defined(__AVX512F__)
constexpr int kTileRows = 4, kTileColumns = 4;  // 16 accumulators and 8 operands of 32 registers
#else
constexpr int kTileRows = 2, kTileColumns = 4;
#endif
constexpr int kRowBlock = 4;  // rows are padded to a multiple of it, which both tile sides divide

static inline float widen(uint16_t bits) {  // bfloat16
  const uint32_t word = uint32_t(bits) << 16;
  float value;
  __builtin_memcpy(&value, &word, 4);
  return value;
}

// float16 bits to float without hardware support: exponent rebias, subnormals by a subtraction.
static inline float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  uint32_t word = (rest << 13) + (rest >= 0x7c00u ? (255u - 31u) << 23 : 112u << 23);
  float value;
  if (rest < 0x400u) {
    word = (rest << 13) + (113u << 23);
    __builtin_memcpy(&value, &word, 4);
    value -= 6.103515625e-05f;
    __builtin_memcpy(&word, &value, 4);
  }
  word |= sign;
  __builtin_memcpy(&value, &word, 4);
  return value;
}

// `count` elements along a stride, converted to the accumulation type.
template <typename T>
void convert(const StridedSamples& s, int64_t offset, int64_t stride, int64_t count, T* out) {
  switch (s.dtype) {
    case DType::float32: {
      const float* p = static_cast<const float*>(s.data) + offset;
      for (int64_t i = 0; i < count; ++i) out[i] = T(p[i * stride]);
      break;
    }
    case DType::float64: {
      const double* p = static_cast<const double*>(s.data) + offset;
      for (int64_t i = 0; i < count; ++i) out[i] = T(p[i * stride]);
      break;
    }
    case DType::bfloat16: {
      const uint16_t* p = static_cast<const uint16_t*>(s.data) + offset;
      if (stride == 1)
        for (int64_t i = 0; i < count; ++i) out[i] = T(widen(p[i]));
      else
        for (int64_t i = 0; i < count; ++i) out[i] = T(widen(p[i * stride]));
      break;
    }
    case DType::float16: {
      const uint16_t* p = static_cast<const uint16_t*>(s.data) + offset;
      if (stride == 1)
        for (int64_t i = 0; i < count; ++i) out[i] = T(half_to_float(p[i]));
      else
        for (int64_t i = 0; i < count; ++i) out[i] = T(half_to_float(p[i * stride]));
      break;
    }
  }
}

// Columns [begin, begin + count) of sample `row`, in logical order, whatever the strides.
template <typename T>
void pack(const StridedSamples& s, int64_t row, int64_t begin, int64_t count, T* out) {
  const int inner = s.dims - 1;
  const int64_t run = s.sizes[inner];
  int64_t position = begin % run, outer = begin / run;
  while (count > 0) {
    int64_t offset = row * s.sample_stride, rest = outer;
    for (int d = inner - 1; d >= 0; --d) {
      offset += rest % s.sizes[d] * s.strides[d];
      rest /= s.sizes[d];
    }
    const int64_t take = run - position < count ? run - position : count;
    convert(s, offset + position * s.strides[inner], s.strides[inner], take, out);
    out += take;
    count -= take;
    position = 0;
    ++outer;
  }
}

// Sums of one tile, kept as vectors of doubles until the very end.
constexpr int kLanes = Vector<double>::lanes;

static inline void flush(vf v, double* sums) {
  constexpr int half = Vector<float>::lanes / 2;
#if defined(__AVX512F__)
  const vd low = (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
  const vd high = (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
#else
  vd low, high;
  for (int i = 0; i < half; ++i) low[i] = v[i], high[i] = v[half + i];
#endif
  store(sums, load<vd>(sums) + (low + high));
}
static inline void flush(vd v, double* sums) { store(sums, load<vd>(sums) + v); }

// All products of the rows a[0..R) with b[0..C) over `columns` (a multiple of the vector). Along
// the way the two rows at `next` are fetched into the second-level cache, for the next chunk.
template <typename T>
inline void tile(const T* const* a, const T* const* b, int64_t columns, const T* const* next,
                 double* sums) {
  using V = typename Vector<T>::type;
  constexpr int lanes = Vector<T>::lanes;
  for (int64_t begin = 0; begin < columns; begin += kRun * lanes) {
    const int64_t end = begin + kRun * lanes < columns ? begin + kRun * lanes : columns;
    V acc[kTileRows][kTileColumns] = {};
    for (int64_t p = begin; p < end; p += lanes) {
      __builtin_prefetch(next[0] + p, 0, 2);
      __builtin_prefetch(next[1] + p, 0, 2);
      V right[kTileColumns];
#pragma GCC unroll 8
      for (int j = 0; j < kTileColumns; ++j) right[j] = load<V>(b[j] + p);
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        const V left = load<V>(a[i] + p);
#pragma GCC unroll 8
        for (int j = 0; j < kTileColumns; ++j) acc[i][j] += left * right[j];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kTileColumns; ++j)
        flush(acc[i][j], sums + (i * kTileColumns + j) * kLanes);
  }
}

template <typename T>
void accumulate(const StridedSamples& s, double* out) {
  constexpr int lanes = Vector<T>::lanes;
  constexpr int tile_sums = kTileRows * kTileColumns * kLanes;
  const int64_t n = s.samples, padded = (n + kRowBlock - 1) / kRowBlock * kRowBlock;
  int64_t total = 1;
  for (int d = 0; d < s.dims; ++d) total *= s.sizes[d];
  // A chunk of all rows is about 32 KiB at N = 16, and stays within the second-level cache.
  int64_t chunk = 32768 / (padded * int64_t(sizeof(T))) / (kRun * lanes) * (kRun * lanes);
  if (chunk < kRun * lanes) chunk = kRun * lanes;
  const int64_t chunks = (total + chunk - 1) / chunk;
  const int64_t groups = chunks < kGroups ? chunks : kGroups;
  const int64_t row_tiles = padded / kTileRows, column_tiles = padded / kTileColumns;
  const int64_t area = row_tiles * column_tiles * tile_sums;
  const bool direct = sizeof(T) == (s.dtype == DType::float32   ? 4
                                    : s.dtype == DType::float64 ? 8
                                                                : 0) &&
                      s.dims == 1 && s.strides[0] == 1;
  const uintptr_t ahead = direct ? uintptr_t(chunk) * sizeof(T) : 0;
  double* all = static_cast<double*>(calloc(size_t(groups * padded * padded), 8));

#pragma omp parallel
  {
    double* sums = static_cast<double*>(aligned_alloc(64, size_t(area) * 8));
    T* packed = static_cast<T*>(aligned_alloc(64, size_t(padded * chunk) * sizeof(T)));
    const T** rows = static_cast<const T**>(malloc(size_t(padded) * sizeof(T*)));
#pragma omp for schedule(dynamic, 1)
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < area; ++i) sums[i] = 0;
      for (int64_t c = chunks * g / groups; c < chunks * (g + 1) / groups; ++c) {
        const int64_t begin = c * chunk;
        const int64_t count = total - begin < chunk ? total - begin : chunk;
        const int64_t columns = (count + lanes - 1) / lanes * lanes;
        for (int64_t i = 0; i < padded; ++i) {
          rows[i] = packed + i * chunk;
          if (direct && i < n && columns == count) {
            rows[i] = static_cast<const T*>(s.data) + i * s.sample_stride + begin;
            continue;
          }
          T* row = packed + i * chunk;
          int64_t filled = 0;
          if (i < n) pack(s, i, begin, filled = count, row);
          for (; filled < columns; ++filled) row[filled] = 0;
        }
        int64_t q = 0;
        for (int64_t r = 0; r < row_tiles; ++r)
          for (int64_t k = 0; k * kTileColumns <= r * kTileRows + kTileRows - 1; ++k, q += 2) {
            // Prefetching past the end of a row is harmless; computed as integers, since the
            // pointer arithmetic would not be.
            const T* next[2];
            for (int j = 0; j < 2; ++j)
              next[j] = reinterpret_cast<const T*>(
                  reinterpret_cast<uintptr_t>(rows[(q + j) % padded]) + ahead);
            tile<T>(rows + r * kTileRows, rows + k * kTileColumns, columns, next,
                    sums + (r * column_tiles + k) * tile_sums);
          }
      }
      double* mine = all + g * padded * padded;
      for (int64_t r = 0; r < row_tiles; ++r)
        for (int64_t k = 0; k * kTileColumns <= r * kTileRows + kTileRows - 1; ++k)
          for (int i = 0; i < kTileRows; ++i)
            for (int j = 0; j < kTileColumns; ++j) {
              const double* cell =
                  sums + (r * column_tiles + k) * tile_sums + (i * kTileColumns + j) * kLanes;
              mine[(r * kTileRows + i) * padded + k * kTileColumns + j] =
                  horizontal<double>(load<vd>(cell));
            }
    }
    free(sums);
    free(packed);
    free(rows);
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t g = 0; g < groups; ++g) sum += all[(g * padded + i) * padded + j];
      out[i * n + j] += sum;
      if (i != j) out[j * n + i] = out[i * n + j];
    }
  free(all);
}

}  // namespace

void gram(const StridedSamples& samples, bool wide, double* out) {
  if (wide || samples.dtype == DType::float64)
    accumulate<double>(samples, out);
  else
    accumulate<float>(samples, out);
}

}  // namespace OASIS_ISA
}  // namespace oasis
