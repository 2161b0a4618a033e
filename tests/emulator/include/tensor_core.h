// One product of tensor cores for the emulator, m16n8k16 with float32 sums: the lanes of a warp
// give their shares of both operands, and each gets its share of the sums. Products are exact; they
// and the sum so far are cut off two bits below the last one of the largest, and so is what they
// add up to, at its own last bit: no better than the hardware, which rounds to nothing nearer.
#pragma once
#include <algorithm>
#include <array>

#include "emulator.h"

namespace emulator {

inline double cut(double x, int exponent) {  // to a multiple of 2^exponent, towards zero
  return std::isfinite(x) ? std::ldexp(std::trunc(std::ldexp(x, -exponent)), exponent) : x;
}

inline float cut_sum(const std::array<double, 17>& terms) {
  constexpr int kBits = 23, kGuard = 2, kLeast = -149;
  double largest = 0, sum = 0;
  for (const double x : terms) largest = std::max(largest, std::isfinite(x) ? std::fabs(x) : 0.0);
  const int top = largest > 0 ? std::ilogb(largest) : kLeast;
  for (const double x : terms) sum += cut(x, std::max(top - kBits - kGuard, kLeast - kGuard));
  if (sum == 0 || !std::isfinite(sum)) return float(sum);
  return float(cut(sum, std::max(std::ilogb(sum) - kBits, kLeast)));
}

// Words of lane 4 g + q: a = {row g, row g + 8, row g at columns 8 further, row g + 8 there}, each
// columns 2 q, 2 q + 1; b = {column g, the same 8 rows further}, each rows 2 q, 2 q + 1. sums =
// rows g, g, g + 8, g + 8 at columns 2 q, 2 q + 1 and again.
template <typename Value>
void multiply_add(float* sums, const std::array<uint32_t, 4>& a, const std::array<uint32_t, 2>& b,
                  Value value, const char* file, int line) {
  std::array<std::array<uint32_t, 6>, 32> words;  // of every lane
  for (int k = 0; k < 3; ++k) {
    const std::array<uint32_t, 2> mine =
        k < 2 ? std::array<uint32_t, 2>{a[size_t(2 * k)], a[size_t(2 * k + 1)]} : b;
    const uint64_t* slots = meet(0xffffffffu, mine.data(), sizeof(mine), false, file, line);
    for (size_t lane = 0; lane < 32; ++lane)
      std::memcpy(&words[lane][size_t(2 * k)], slots + lane, sizeof(mine));
  }
  // Number `column` of the words that the four lanes of group g have at `word` and `word + step`.
  const auto number = [&](int g, int word, int step, int column) {
    const uint32_t pair = words[size_t(4 * g + column % 8 / 2)][size_t(word + column / 8 * step)];
    return double(value(uint16_t(column % 2 ? pair >> 16 : pair & 0xffffu)));
  };
  const int lane = int(self().index.x % 32), g = lane / 4, q = lane % 4;
  for (int i = 0; i < 4; ++i) {
    std::array<double, 17> terms;
    for (int k = 0; k < 16; ++k)
      terms[size_t(k)] = number(g, i / 2, 2, k) * number(2 * q + i % 2, 4, 1, k);
    terms[16] = double(sums[i]);
    sums[i] = cut_sum(terms);
  }
}

}  // namespace emulator
