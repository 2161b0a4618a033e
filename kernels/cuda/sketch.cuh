// Sketches of given gradients [N, P] (csrc/include/oasis/sketch.h): a thread per bucket, so there
// are no atomics. A run's rotation turns the threads, so a warp still reads what lies together.
#pragma once
#include "common.cuh"
#include "elements.cuh"
#include "oasis/sketch.h"

namespace oasis {

constexpr int kSketchThreads = 256;

struct SketchArguments {
  const void* data;
  int64_t samples, columns, row_stride;  // in elements; columns of a row are contiguous
  SketchPlan plan;
  int64_t first_run, runs;  // that have columns
  int groups;               // of runs, a block each
  double* partial;          // [samples, groups, dim]
};

template <typename Type>
__device__ inline double sketch_value(const void* data, int64_t at) {
  return double(Type::value(static_cast<const typename Type::Element*>(data)[at]));
}

template <typename Type>
__global__ void __launch_bounds__(kSketchThreads) sketch_kernel(const SketchArguments s) {
  const int64_t sample = blockIdx.y, group = blockIdx.x, dim = s.plan.dim;
  const int64_t begin = s.first_run + s.runs * group / s.groups;
  const int64_t end = s.first_run + s.runs * (group + 1) / s.groups;
  for (int64_t bucket = threadIdx.x; bucket < dim; bucket += kSketchThreads) {
    double sum = 0;
    for (int64_t run = begin; run < end; ++run) {
      const int64_t turned = bucket - sketch_rotation(s.plan, run);
      const int64_t position = run * dim + (turned < 0 ? turned + dim : turned);
      const int64_t column = position - s.plan.first;
      if (column < 0 || column >= s.columns) continue;
      const double value = sketch_value<Type>(s.data, sample * s.row_stride + column);
      sum += sketch_signs(s.plan, position / 64) >> (position % 64) & 1 ? -value : value;
    }
    s.partial[(sample * s.groups + group) * dim + bucket] = sum;
  }
}

// Adds the groups' sums, in their order, to out [samples, dim].
__global__ void __launch_bounds__(kSketchThreads)
    sketch_reduce_kernel(const double* partial, int64_t count, int64_t dim, int groups,
                         double* out) {
  const int64_t i = int64_t(blockIdx.x) * kSketchThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t sample = i / dim, bucket = i % dim;
  double sum = 0;
  for (int group = 0; group < groups; ++group)
    sum += partial[(sample * groups + group) * dim + bucket];
  out[i] += sum;
}

}  // namespace oasis
