// Mean-field SIREN by one block (docs/method.md 2.2). A thread owns samples t, t + threads, ... and
// nodes of the integral; a warp takes a picked sample's weight, its lanes the nodes.
#pragma once
#include <cmath>

#include "common.cuh"
#include "oasis/mean_field.h"

namespace oasis {

constexpr int kMeanFieldThreads = 512;

struct MeanFieldArguments {
  const double* gram;  // [n, n]
  const bool* valid;
  const double* floor;
  int n;
  double* sums;  // [2, n], or null: in shared memory
  double* adjusted;
  int64_t* order;
};

struct MeanFieldShared {
  MeanFieldNodes* nodes;
  int* used;                 // [2] even nodes that matter, for this pick and the next
  double* adjusted;          // [n], scaled like all the rest
  bool* open;                // [n] valid and not yet picked; only its owner looks
  int* picks;                // [n]
  Largest* best;             // [2, warps]
  double *overlap, *weight;  // [n] of K_iv over v in H \ {i}, by sample; w_u, by pick
  __host__ __device__ MeanFieldShared(Carve& carve, int64_t n, double* sums) {
    nodes = carve.take<MeanFieldNodes>(1);
    used = carve.take<int>(2);
    adjusted = carve.take<double>(n);
    open = carve.take<bool>(n);
    picks = carve.take<int>(n);
    best = carve.take<Largest>(2 * (kMeanFieldThreads / kWarp));
    overlap = sums ? sums : carve.take<double>(n);
    weight = sums ? sums + n : carve.take<double>(n);
  }
};

struct PickedSums {
  double scores, norms, pairs;  // over H: of K_vv, of ||g_v||, of K_vv' (v != v')
};

// Of pick u among m + 1, K_uu = score, whose K_uv with the others are `overlap` together.
__device__ inline MeanField mean_field_of(double score, double overlap, const PickedSums& of,
                                          int m) {
  MeanField f{};
  f.square = f.score = score;
  f.norm = sqrt(f.square);
  if (m) {
    f.mean = (of.scores - f.score) / m;
    f.mean_norm = (of.norms - f.norm) / m;
    f.linear = f.mean + 2 * overlap / m;
  }
  if (m > 1) f.quadratic = (of.pairs - 2 * overlap) / (double(m) * (m - 1));
  mean_field_bound(f, m);
  return f;
}

__device__ inline void mean_field_block(const MeanFieldArguments& r, const MeanFieldShared& s) {
  constexpr int kThreads = kMeanFieldThreads, kWarps = kThreads / kWarp;
  const int n = r.n, thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const double floor = *r.floor;
  double scale = 1;  // of all below; the first pick's score decides it
  PickedSums over{};
  for (int i = thread; i < n; i += kThreads) {
    s.open[i] = r.valid[i];
    s.adjusted[i] = r.valid[i] ? r.gram[int64_t(i) * (n + 1)] : 0.0;
    s.overlap[i] = 0;
    r.order[i] = -1;
  }
  s.nodes->start<kThreads>(thread);
  if (thread == 0) s.used[0] = MeanFieldNodes::kComplex;
  for (int m = 0; m < n; ++m) {
    // The weights have been read behind this barrier.
    const Largest pick = block_largest(s.open, s.adjusted, n, s.best + (m & 1) * kWarps);
    if (pick.index == n || (floor > -HUGE_VAL && !(pick.value > floor * scale))) break;
    const int a = pick.index;
    if (thread == a % kThreads) {
      s.open[a] = false;
      s.picks[m] = a;
      r.order[m] = a;
      s.adjusted[a] = pick.value / scale;
    }
    if (m == 0) scale = near_one(pick.value);
    const double score = r.gram[int64_t(a) * (n + 1)] * scale;
    over = {over.scores + score, over.norms + sqrt(score), over.pairs + 2 * s.overlap[a]};
    for (int i = thread; i < n; i += kThreads) {
      if (!r.valid[i] || i == a) continue;  // the row of the earlier pick, as on the CPU
      const int64_t at = s.open[i] ? int64_t(a) * n + i : int64_t(i) * n + a;
      s.overlap[i] += r.gram[at] * scale;
    }
    const int used = s.used[m & 1];
    if (m) s.nodes->advance<kThreads>(m, used, thread);
    __syncthreads();  // the pick, the sums over H and the nodes are complete
    if (thread == 0) s.used[(m + 1) & 1] = s.nodes->still_used(used);
    for (int u = warp; u <= m; u += kWarps) {
      const int at = s.picks[u];
      const MeanField f =
          mean_field_of(r.gram[int64_t(at) * (n + 1)] * scale, s.overlap[at], over, m);
      const double sum = warp_sum(s.nodes->part<kWarp>(f, m, used, lane));
      if (lane == 0) s.weight[u] = -sum;
    }
    __syncthreads();  // the weights are complete
    for (int i = thread; i < n; i += kThreads) {
      if (!s.open[i]) continue;
      double shared = 0;
#pragma unroll 8
      for (int u = 0; u <= m; ++u)
        shared += s.weight[u] * (r.gram[int64_t(s.picks[u]) * n + i] * scale);
      const double own = r.gram[int64_t(i) * (n + 1)] * scale;
      s.adjusted[i] = own + (own > 0 ? shared / sqrt(own) : 0.0);
    }
  }
  // Stopped early: what was not picked keeps its raw score.
  for (int i = thread; i < n; i += kThreads)
    r.adjusted[i] = s.open[i] ? r.gram[int64_t(i) * (n + 1)] : s.adjusted[i];
}

__global__ void __launch_bounds__(kMeanFieldThreads, 1)
    siren_mean_field_kernel(const MeanFieldArguments r) {
  Carve carve(dynamic_shared());
  const MeanFieldShared shared(carve, r.n, r.sums);
  mean_field_block(r, shared);
}

}  // namespace oasis
