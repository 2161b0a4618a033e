// The types that gradients come in: how one number lies in memory, and its value.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

namespace oasis {

struct Float32 {
  using Element = float;
  __device__ static float value(float x) { return x; }
};
struct Float64 {
  using Element = double;
  __device__ static double value(double x) { return x; }
};
struct Bfloat16 {
  using Element = uint16_t;
  static constexpr bool kBrain = true;
  __device__ static float value(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
};
struct Float16 {
  using Element = uint16_t;
  static constexpr bool kBrain = false;
  __device__ static float value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
};

}  // namespace oasis
