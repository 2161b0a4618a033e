// From Gram matrix to mask in one launch, for batches that one block takes: SIREN, then ORIS.
#pragma once
#include "oris.cuh"
#include "siren.cuh"
#include "siren_mean_field.cuh"
#include "siren_rules.cuh"

namespace oasis {

__global__ void __launch_bounds__(kExactThreads, 1)
    select_exact_kernel(const ExactArguments e, const OrisArguments o) {
  Carve carve(dynamic_shared());
  OrisStep* step = carve.take<OrisStep>(1);
  const ExactShared shared(carve, e.capacity);
  exact_in_one_block(e, shared);
  __syncthreads();  // the adjusted scores are complete
  oris_block(o, e.adjusted, step);
}

__global__ void __launch_bounds__(kRuleThreads, 1)
    select_rule_kernel(const RuleArguments r, const OrisArguments o) {
  Carve carve(dynamic_shared());
  OrisStep* step = carve.take<OrisStep>(1);
  const RuleShared shared(carve, r.n, true);
  rule_block(r, shared);
  __syncthreads();  // the adjusted scores are complete
  oris_block(o, r.adjusted, step);
}

__global__ void __launch_bounds__(kMeanFieldThreads, 1)
    select_mean_field_kernel(const MeanFieldArguments r, const OrisArguments o) {
  Carve carve(dynamic_shared());
  OrisStep* step = carve.take<OrisStep>(1);
  const MeanFieldShared shared(carve, r.n, nullptr);
  mean_field_block(r, shared);
  __syncthreads();  // the adjusted scores are complete
  oris_block(o, r.adjusted, step);
}

}  // namespace oasis
