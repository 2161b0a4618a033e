// One ORIS step by one block (docs/method.md 3 and 4): csrc/include/oasis/oris.h, a thread per
// sample where samples are independent. Sums run in the order of the samples, as on the CPU.
#pragma once
#include "common.cuh"
#include "oasis/oris.h"

namespace oasis {

struct OrisArguments {
  const double* informativeness;
  const bool* valid;
  int64_t n;
  OrisConfig config;
  double* statistics;
  int64_t* counters;
  double *relative, *probability;
  bool* mask;
};

// `step` lies in shared memory. `adjusted` must be visible to the whole block.
__device__ inline void oris_block(const OrisArguments& o, const double* adjusted, OrisStep* step) {
  if (threadIdx.x == 0)
    oris_begin(o.informativeness, adjusted, o.valid, o.n, o.config, o.statistics, o.counters, step);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < o.n; i += blockDim.x)
    oris_judge(*step, o.config.draw, o.valid[i], adjusted[i], i, o.relative + i, o.probability + i,
               o.mask + i);
  __syncthreads();
  if (threadIdx.x == 0)
    oris_end(step, o.valid, o.n, o.config, o.probability, o.mask, o.statistics, o.counters);
  __syncthreads();
  if (!oris_ranks(*step, o.config.draw)) return;
  for (int64_t i = threadIdx.x; i < o.n; i += blockDim.x)
    o.probability[i] = oris_key(*step, o.config.draw, o.mask[i], o.relative[i], i);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < o.n; i += blockDim.x)
    o.mask[i] = o.valid[i] && oris_rank(o.probability, o.valid, o.n, i) < step->keep;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < o.n; i += blockDim.x)
    o.probability[i] = o.valid[i] ? oris_probability(*step, o.relative[i]) : 0.0;
}

// One block a processor: the registers that leaves keep ptxas for sm_100 from spilling.
__global__ void __launch_bounds__(256, 1)
    oris_kernel(const OrisArguments o, const double* adjusted) {
  oris_block(o, adjusted, reinterpret_cast<OrisStep*>(dynamic_shared()));
}

}  // namespace oasis
