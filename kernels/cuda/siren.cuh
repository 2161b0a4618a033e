// Exact SIREN (docs/method.md 2.1): every subset of the picked samples is visited once.
//
// A subset U of H is a bit pattern in picking order. What is a plain sum over its members (scores,
// norms, inner products with the newest pick) is split: the bits that a thread always has live in
// its registers, the higher bits in small tables. Only ||S_U||^2 needs a table over all subsets.
// Up to 16 samples one block does everything with that table in shared memory; beyond, the first
// kPrefix picks are made by one block and every further pick by a grid of blocks over the subsets
// (siren_grid.cuh). All sums in float64, in a fixed order.
#pragma once
#include <cmath>

#include "common.cuh"
#include "oasis/numbers.h"

namespace oasis {

constexpr int kExactThreads = 512, kThreadBits = 9;
constexpr int kBlockExact = 16;  // samples that one block's shared memory takes
constexpr int kMaxHighBits = kBlockExact - 2 - kThreadBits;  // bits of a subset beyond a thread's
constexpr int kCount = 0, kPicks = 1, kStopped = 2, kControls = 4;

// The greedy state over the valid samples, renumbered 0..count-1. `capacity` bounds their number.
struct Greedy {
  double* gram;                                       // [capacity, capacity] over its largest entry
  double *inverse_norm, *adjusted, *weight, *scores;  // [capacity]; scores: at the time of the pick
  double* scale;                                      // [2] largest diagonal entry, floor over it
  int *order, *kept, *control;                        // [capacity], [capacity], [kControls]
  bool* picked;                                       // [capacity]

  __host__ __device__ Greedy(Carve& carve, int64_t capacity) {
    gram = carve.take<double>(capacity * capacity);
    inverse_norm = carve.take<double>(capacity);
    adjusted = carve.take<double>(capacity);
    weight = carve.take<double>(capacity);
    scores = carve.take<double>(capacity);
    scale = carve.take<double>(2);
    order = carve.take<int>(capacity);
    kept = carve.take<int>(capacity);
    control = carve.take<int>(kControls);
    picked = carve.take<bool>(capacity);
  }
};

struct ExactArguments {
  const double* gram;  // [n, n]
  const bool* valid;   // [n]
  const double* floor;
  int64_t n, capacity;
  double* adjusted;  // [n]
  int64_t* order;    // [n]
};

constexpr int kCoefficients = 32;
// (-1)^(k+1) / (k+1): the sign and the mean, k the size of U before the newest sample joins.
__device__ inline void fill_coefficients(double* table) {
  const int k = int(threadIdx.x);
  if (k < kCoefficients) table[k] = (k % 2 ? 1.0 : -1.0) / (k + 1);
}

// The term of S = U + {a}, and ||S||^2.
__device__ inline double subset_term(double squared, double length, double score,
                                     double coefficient) {
  const double bound = length * length * kVanishing;
  return squared > bound ? coefficient * score * rsqrt(squared) : 0.0;
}

// Renumbers the valid samples, copies their Gram matrix over its largest diagonal entry: no
// overflow at any scale of gradients, and copies of the largest come out as exactly zero.
__device__ inline void greedy_begin(const ExactArguments& e, const Greedy& s) {
  if (threadIdx.x < kWarp) {
    int count = 0;
    for (int64_t base = 0; base < e.n; base += kWarp) {
      const int64_t i = base + threadIdx.x;
      const bool ok = i < e.n && e.valid[i];
      const unsigned votes = __ballot_sync(kWholeWarp, ok);
      const int slot = count + __popc(votes & ((1u << threadIdx.x) - 1));
      if (ok && slot < e.capacity) s.kept[slot] = int(i);
      count += __popc(votes);
    }
    if (threadIdx.x == 0) {
      s.control[kCount] = count < e.capacity ? count : int(e.capacity);
      s.control[kPicks] = 0;
      s.control[kStopped] = 0;
    }
  }
  __syncthreads();
  const int count = s.control[kCount];
  double top = 0;
  for (int i = 0; i < count; ++i) {
    const double score = e.gram[int64_t(s.kept[i]) * (e.n + 1)];
    top = score > top ? score : top;
  }
  if (!(top > 0)) top = 1;
  for (int cell = int(threadIdx.x); cell < count * count; cell += int(blockDim.x)) {
    const int i = cell / count, j = cell % count;
    const double value = e.gram[int64_t(s.kept[i]) * e.n + s.kept[j]] / top;
    s.gram[cell] = value;
    if (i == j) {
      s.adjusted[i] = value;
      s.inverse_norm[i] = value > 0 ? rsqrt(value) : 0.0;
      s.picked[i] = false;
    }
  }
  if (threadIdx.x == 0) {
    s.scale[0] = top;
    s.scale[1] = *e.floor / top;
  }
  __syncthreads();
}

// By the first warp: adjusted scores after pick m - 1 (m > 0), then pick m.
__device__ inline void greedy_pick(const Greedy& s, int m) {
  const int count = s.control[kCount], i = int(threadIdx.x);
  Largest mine{-HUGE_VAL, count};
  if (i < count && !s.picked[i]) {
    double score = s.adjusted[i];
    if (m > 0) {
      double overlap = 0;
      for (int u = 0; u < m; ++u) overlap += s.weight[u] * s.gram[s.order[u] * count + i];
      score = s.gram[i * count + i] + s.inverse_norm[i] * overlap;
      s.adjusted[i] = score;
    }
    mine = {score, i};
  }
  const Largest best = warp_largest(mine);
  const double floor = s.scale[1];
  const bool stop = best.index == count || (floor > -HUGE_VAL && !(best.value > floor));
  if (i == 0) {
    s.control[kStopped] = stop || m + 1 == count;  // the last pick needs no weights
    if (!stop) {
      s.order[m] = best.index;
      s.scores[m] = best.value;
      s.control[kPicks] = m + 1;
    }
  }
  if (!stop && i == best.index) s.picked[i] = true;  // by the lane that alone looks at it
}

// Scores as they were when picked; what was not picked keeps its raw score.
__device__ inline void greedy_end(const ExactArguments& e, const Greedy& s) {
  const int count = s.control[kCount], picks = s.control[kPicks];
  for (int64_t i = threadIdx.x; i < e.n; i += blockDim.x) {
    e.adjusted[i] = 0;
    e.order[i] = i < picks ? s.kept[s.order[i]] : -1;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
    const int sample = s.kept[i];
    double score = e.gram[int64_t(sample) * (e.n + 1)];
    for (int m = 0; m < picks; ++m)
      if (s.order[m] == i) score = s.scores[m] * s.scale[0];
    e.adjusted[sample] = score;
  }
}

// What one block needs beside the greedy state.
struct ExactTables {
  double* squared_norm;                         // [2^most] ||S_U||^2
  double* total;                                // [threads] sum of a thread's terms
  double* high_total;                           // [kMaxHighBits, warps] those with a high bit set
  double *high_score, *high_norm, *high_inner;  // [2^kMaxHighBits]
  double* coefficient;                          // [kCoefficients]

  __host__ __device__ ExactTables(Carve& carve, int most) {
    squared_norm = carve.take<double>(int64_t(1) << most);
    total = carve.take<double>(kExactThreads);
    high_total = carve.take<double>(kMaxHighBits * (kExactThreads / kWarp));
    high_score = carve.take<double>(1 << kMaxHighBits);
    high_norm = carve.take<double>(1 << kMaxHighBits);
    high_inner = carve.take<double>(1 << kMaxHighBits);
    coefficient = carve.take<double>(kCoefficients);
  }
};

// Sum of K_ua over the members u of U among `bits` picks from number `first`, by the thread's bits.
__device__ inline double inner_with(const Greedy& s, int a, int first, int bits) {
  const int count = s.control[kCount];
  double inner = 0;
  for (int u = 0; u < bits; ++u)
    if (int(threadIdx.x) >> u & 1) inner += s.gram[s.order[first + u] * count + a];
  return inner;
}

// Warp u sums the terms of the subsets that hold pick u; all of them hold pick m.
__device__ inline void exact_marginals(const Greedy& s, const ExactTables& t, int m, int low_bits) {
  constexpr int kWarps = kExactThreads / kWarp;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  if (warp > m) return;
  double sum = 0;
  if (warp >= low_bits && warp < m) {
    if (lane < kWarps) sum = t.high_total[(warp - low_bits) * kWarps + lane];
  } else {
    const int size = 1 << low_bits;
    for (int i = lane; i < size; i += kWarp)
      if (warp == m || i >> warp & 1) sum += t.total[i];
  }
  sum = warp_sum(sum);
  if (lane == 0) s.weight[warp] = warp == m ? sum : s.weight[warp] + sum;
}

// Picks by one block of kExactThreads threads, until none is left or `most` samples have been
// joined to H. Then one more pick has been made, and the tables hold all subsets of the joined.
__device__ inline void exact_block(const Greedy& s, const ExactTables& t, int most) {
  const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  constexpr int kWarps = kExactThreads / kWarp;
  const int count = s.control[kCount];
  double low_score = 0, low_norm = 0;  // sums over the members of U among this thread's bits
  fill_coefficients(t.coefficient);
  if (thread == 0) t.squared_norm[0] = t.high_score[0] = t.high_norm[0] = 0;
  if (warp == 0) greedy_pick(s, 0);
  __syncthreads();  // the pick is known
  for (int m = 0; m < most && !s.control[kStopped]; ++m) {
    const int a = s.order[m];
    const double score = s.gram[a * count + a], norm = sqrt(score);
    const int low_bits = m < kThreadBits ? m : kThreadBits, high_bits = m - low_bits;
    if (thread < 1 << high_bits) t.high_inner[thread] = inner_with(s, a, kThreadBits, high_bits);
    const double low_inner = inner_with(s, a, 0, low_bits);
    __syncthreads();  // the tables of the high bits are complete

    double total = 0, high[kMaxHighBits] = {};
    if (thread < 1 << low_bits) {
      const int members = __popc(unsigned(thread));
      const bool keep = m + 2 < count;
      for (int k = 0; k < 1 << high_bits; ++k) {
        const int u = thread + (k << kThreadBits);
        const double squared = t.squared_norm[u] + 2 * (low_inner + t.high_inner[k]) + score;
        if (keep) t.squared_norm[u + (1 << m)] = squared;
        const double term = subset_term(squared, low_norm + t.high_norm[k] + norm,
                                        low_score + t.high_score[k] + score,
                                        t.coefficient[members + __popc(unsigned(k))]);
        total += term;
#pragma unroll
        for (int v = 0; v < kMaxHighBits; ++v)
          if (k >> v & 1) high[v] += term;
      }
    }
    t.total[thread] = total;
#pragma unroll
    for (int v = 0; v < kMaxHighBits; ++v)
      if (v < high_bits) {
        const double sum = warp_sum(high[v]);
        if (lane == 0) t.high_total[v * kWarps + warp] = sum;
      }
    __syncthreads();  // every thread's sums are there

    exact_marginals(s, t, m, low_bits);
    if (m < kThreadBits) {
      if (thread >> m & 1) low_score += score, low_norm += norm;
    } else if (m + 2 < count && thread < 1 << high_bits) {
      t.high_score[thread + (1 << high_bits)] = t.high_score[thread] + score;
      t.high_norm[thread + (1 << high_bits)] = t.high_norm[thread] + norm;
    }
    __syncthreads();  // the weights are complete
    if (warp == 0) greedy_pick(s, m + 1);
    __syncthreads();  // the next pick is known
  }
}

// Shared memory of a block that does everything for up to `capacity` samples.
struct ExactShared {
  Greedy greedy;
  ExactTables tables;
  __host__ __device__ ExactShared(Carve& carve, int64_t capacity)
      : greedy(carve, capacity), tables(carve, capacity > 2 ? int(capacity) - 2 : 0) {}
};

__device__ inline void exact_in_one_block(const ExactArguments& e, const ExactShared& shared) {
  greedy_begin(e, shared.greedy);
  exact_block(shared.greedy, shared.tables, int(e.capacity));
  greedy_end(e, shared.greedy);
}

__global__ void __launch_bounds__(kExactThreads, 1) siren_exact_kernel(const ExactArguments e) {
  Carve carve(dynamic_shared());
  const ExactShared shared(carve, e.capacity);
  exact_in_one_block(e, shared);
}

}  // namespace oasis
