// From Gram matrix to mask in one launch, for batches that one block takes: candidates are judged,
// SIREN, then ORIS. What is left of the Gram matrix never leaves the block.
#pragma once
#include "oasis/select.h"
#include "oris.cuh"
#include "siren.cuh"
#include "siren_mean_field.cuh"
#include "siren_rules.cuh"
#include "usable.cuh"

namespace oasis {

// Beside what SIREN needs.
struct SelectShared {
  OrisStep* step;
  double *left, *floor;  // [n, n]; one number
  bool* valid;           // [n]
  Wrong* found;          // [warps]
  __host__ __device__ SelectShared(Carve& carve, int64_t n) {
    step = carve.take<OrisStep>(1);
    left = carve.take<double>(n * n);
    floor = carve.take<double>(1);
    valid = carve.take<bool>(n);
    found = carve.take<Wrong>(1024 / kWarp);
  }
};

// What is wrong becomes a code (oasis/usable.h), and then nobody is valid: nothing is selected.
__device__ inline void select_begin(const Select& a, int64_t* wrong, const SelectShared& s) {
  const Wrong found = usable_block({a.gram, a.given, nullptr, nullptr, a.n, 0, a.products, a.raises,
                                    s.left, a.informativeness, s.valid, a.skipped},
                                   s.found);
  __syncthreads();  // the candidates are complete
  if (threadIdx.x == 0) {
    *wrong = int64_t(found);
    *a.threshold = a.statistics[kThreshold];
    *s.floor = a.stop
                   ? oris_stop(a.informativeness, s.valid, a.n, a.config, a.statistics, a.counters)
                   : -HUGE_VAL;
  }
  __syncthreads();  // the floor is known
}

__device__ inline void select_end(const Select& a, const SelectShared& s) {
  __syncthreads();  // the adjusted scores are complete
  oris_block({a.informativeness, s.valid, a.n, a.config, a.statistics, a.counters, a.relative,
              a.probability, a.mask},
             a.adjusted, s.step);
}

__global__ void __launch_bounds__(kExactThreads, 1)
    select_exact_kernel(const Select a, int64_t* wrong) {
  Carve carve(dynamic_shared());
  const SelectShared s(carve, a.n);
  const ExactShared shared(carve, a.n);
  select_begin(a, wrong, s);
  exact_in_one_block({s.left, s.valid, s.floor, a.n, a.n, a.adjusted, a.order}, shared);
  select_end(a, s);
}

__global__ void __launch_bounds__(kRuleThreads, 1)
    select_rule_kernel(const Select a, int64_t* wrong) {
  Carve carve(dynamic_shared());
  const SelectShared s(carve, a.n);
  const RuleShared shared(carve, a.n, true);
  select_begin(a, wrong, s);
  rule_block({s.left, s.valid, s.floor, int(a.n), a.rule, a.ridge, nullptr, a.adjusted, a.order},
             shared);
  select_end(a, s);
}

__global__ void __launch_bounds__(kMeanFieldThreads, 1)
    select_mean_field_kernel(const Select a, int64_t* wrong) {
  Carve carve(dynamic_shared());
  const SelectShared s(carve, a.n);
  const MeanFieldShared shared(carve, a.n, nullptr);
  select_begin(a, wrong, s);
  mean_field_block({s.left, s.valid, s.floor, int(a.n), nullptr, a.adjusted, a.order}, shared);
  select_end(a, s);
}

}  // namespace oasis
