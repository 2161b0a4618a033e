// The numbers of samples of any strided layout and type, in logical order.
#pragma once
#include <cstdint>

#include "cpu/kernels.h"

namespace oasis {
namespace OASIS_ISA {

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
static void convert(const StridedSamples& s, int64_t offset, int64_t stride, int64_t count,
                    T* out) {
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
static void pack(const StridedSamples& s, int64_t row, int64_t begin, int64_t count, T* out) {
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

}  // namespace OASIS_ISA
}  // namespace oasis
