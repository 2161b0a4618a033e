// Candidates by one block: checked, and with zeros where one cannot be scored (oasis/usable.h).
// Nobody waits for what is wrong: it becomes a code beside the results, and then nobody is valid.
#pragma once
#include "common.cuh"
#include "oasis/usable.h"

namespace oasis {

constexpr int kUsableThreads = 256;

__device__ inline Wrong first_of(Wrong a, Wrong b) {
  return a == Wrong::nothing || (b != Wrong::nothing && b < a) ? b : a;
}

// A warp reads the sketch of one sample after the other.
__device__ inline Wrong judge_candidates(const Usable& u) {
  Wrong wrong = Wrong::nothing;
  const int lane = int(threadIdx.x) % kWarp;
  for (int64_t i = threadIdx.x / kWarp; i < u.n; i += blockDim.x / kWarp) {
    double odd = 0.0;
    if (u.sketch)
      for (int64_t k = lane; k < u.width; k += kWarp)
        odd += !finite_number(u.sketch[i * u.width + k]);
    odd = warp_sum(odd);
    if (lane == 0) wrong = first_of(wrong, judge_candidate(u, i, odd == 0.0));
  }
  return wrong;
}

__device__ inline Wrong judge_entries(const Usable& u) {
  const int64_t n = u.n;
  Wrong wrong = Wrong::nothing;
  for (int64_t e = threadIdx.x; e < n * n; e += blockDim.x) {
    const int64_t i = e / n, j = e % n;
    const double here = u.gram[e], limit = norm_of(u.gram[i * n + i]) * norm_of(u.gram[j * n + j]);
    const bool judged = u.products && (!u.given || (u.given[i] && u.given[j]));
    if (judged && i == j && here < 0) wrong = Wrong::negative;
    if (judged && no_product(here, u.gram[j * n + i], limit))
      wrong = first_of(wrong, Wrong::products);
    u.left[e] = u.valid[i] && u.valid[j] ? here : 0.0;
    if (!finite_number(u.left[e])) wrong = first_of(wrong, Wrong::entries);
  }
  return wrong;
}

// What is wrong, the same for every thread; `found` [warps of the block]. What `u` writes is
// complete after the caller's next barrier.
__device__ inline Wrong usable_block(const Usable& u, Wrong* found) {
  const Wrong of_samples = judge_candidates(u);
  __syncthreads();  // who is valid is known
  int mine = int(first_of(of_samples, judge_entries(u)));
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(kWholeWarp, mine, step);
    mine = int(first_of(Wrong(mine), Wrong(other)));
  }
  if (threadIdx.x % kWarp == 0) found[threadIdx.x / kWarp] = Wrong(mine);
  __syncthreads();  // every warp's finding is there
  Wrong wrong = Wrong::nothing;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) wrong = first_of(wrong, found[w]);
  if (wrong == Wrong::nothing) return wrong;
  for (int64_t i = threadIdx.x; i < u.n; i += blockDim.x) {
    u.valid[i] = false;
    u.informativeness[i] = 0.0;
  }
  for (int64_t e = threadIdx.x; e < u.n * u.n; e += blockDim.x) u.left[e] = 0.0;
  return wrong;
}

__global__ void __launch_bounds__(kUsableThreads, 1) usable_kernel(const Usable u, int64_t* wrong) {
  const Wrong found = usable_block(u, reinterpret_cast<Wrong*>(dynamic_shared()));
  if (threadIdx.x == 0) *wrong = int64_t(found);
}

}  // namespace oasis
