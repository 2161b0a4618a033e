// Sketches of given gradients (oasis/sketch.h), in float64 whatever their type.
#include "oasis/sketch.h"

#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/scratch.h"

namespace oasis {
namespace OASIS_ISA {
namespace {

void flip(const SketchPlan& plan, int64_t position, int64_t count, double* values) {
  for (int64_t i = 0; i < count;) {
    const int64_t word = (position + i) / 64, bit = (position + i) % 64;
    const uint64_t signs = sketch_signs(plan, word) >> bit;
    const int64_t left = 64 - bit < count - i ? 64 - bit : count - i;
    for (int64_t b = 0; b < left; ++b) values[i + b] *= 1.0 - 2.0 * double(int64_t(signs >> b & 1));
    i += left;
  }
}

// Run by run, so that both a run and its sketch stay in the nearest cache.
void add_sample(const StridedSamples& s, int64_t sample, const SketchPlan& plan, double* values,
                double* out) {
  int64_t total = 1;
  for (int d = 0; d < s.dims; ++d) total *= s.sizes[d];
  for (int64_t begin = 0; begin < total;) {
    const int64_t position = plan.first + begin, inside = position % plan.dim;
    const int64_t rest = plan.dim - inside;
    const int64_t count = rest < total - begin ? rest : total - begin;
    pack(s, sample, begin, count, values);
    flip(plan, position, count, values);
    const int64_t bucket = (inside + sketch_rotation(plan, position / plan.dim)) % plan.dim;
    const int64_t upper = plan.dim - bucket < count ? plan.dim - bucket : count;
    for (int64_t i = 0; i < upper; ++i) out[bucket + i] += values[i];
    for (int64_t i = upper; i < count; ++i) out[i - upper] += values[i];
    begin += count;
  }
}

}  // namespace

bool sketch(const StridedSamples& s, const SketchPlan& plan, double* out) {
  bool whole = true;
#pragma omp parallel
  {
    const Scratch<double> values(plan.dim);
    if (!values) {
#pragma omp atomic write
      whole = false;
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.samples; ++i)
      if (values) add_sample(s, i, plan, values.get(), out + i * plan.dim);
  }
  return whole;
}

}  // namespace OASIS_ISA
}  // namespace oasis
