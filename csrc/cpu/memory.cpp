// SIREN across batches (oasis/memory.h). One thread up to a few hundred remembered samples, where
// forks and joins would cost more.
#include "oasis/memory.h"

#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"

namespace oasis {
namespace OASIS_ISA {
namespace {

constexpr int kLanes = Vector<double>::lanes;
constexpr int64_t kShare = 1 << 24;  // products worth a second thread

double dot(const double* a, const double* b, int64_t count) {
  vd sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j)
      sums[j] += load<vd>(a + i + j * kLanes) * load<vd>(b + i + j * kLanes);
  double sum = horizontal<double>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

SketchNorm direction(const double* row, int64_t width, double* out) {
  double top = 0;
  for (int64_t i = 0; i < width; ++i) top = top < std::fabs(row[i]) ? std::fabs(row[i]) : top;
  SketchNorm s{near_one(top), 0};
  for (int64_t i = 0; i < width; ++i) out[i] = row[i] * s.to_unit;
  s.norm = std::sqrt(dot(out, out, width));
  for (int64_t i = 0; i < width; ++i) out[i] = s.direction(row[i]);
  return s;
}

double mean_square(const Remembered& r) {
  double sum = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < r.n; ++i)
    if (r.valid[i]) sum += r.gram[i * r.n + i], ++count;
  return count ? sum / double(count) : 0;
}

// Row `row` of the factor, from its cosines with the remembered rows: all before it, or every one.
void eliminate(double* factor, int64_t filled, int64_t row, const double* inverse) {
  double* const own = factor + row * filled;
  const int64_t count = row < filled ? row : filled;
  for (int64_t k = 0; k < count; ++k)
    own[k] = (own[k] - dot(own, factor + k * filled, k)) * inverse[k];
}

}  // namespace

bool remembered(const Remembered& r) {
  const int64_t filled = memory_filled(*r.selected, r.capacity), rows = filled + r.n;
  const Scratch<double> units(rows * r.width), factors(rows * filled), numbers(filled + r.n);
  if (!units || !factors || !numbers) return false;
  double *const unit = units.get(), *const factor = factors.get();
  double *const inverse = numbers.get(), *const norm = inverse + filled;
  const double mean = mean_square(r);

  for (int64_t k = 0; k < filled; ++k)  // the noise, for now
    inverse[k] = memory_noise(
        r.ridge, mean, direction(r.memory + k * r.width, r.width, unit + k * r.width).square());
  for (int64_t i = 0; i < r.n; ++i) {
    double *const u = unit + (filled + i) * r.width, *const scaled = r.scaled + i * r.width;
    norm[i] = r.valid[i] ? std::sqrt(r.gram[i * r.n + i]) : 0;
    if (norm[i] > 0)
      direction(r.sketch + i * r.width, r.width, u);
    else  // whatever its sketch may hold
      for (int64_t p = 0; p < r.width; ++p) u[p] = 0;
    for (int64_t p = 0; p < r.width; ++p) scaled[p] = norm[i] * u[p];
  }
  for (int64_t i = 0; i < r.n * r.n; ++i) r.left[i] = r.gram[i];
  if (filled == 0 || !(mean > 0)) return true;

#pragma omp parallel for schedule(dynamic, 8) if (rows * filled * r.width > kShare)
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < filled && k <= i; ++k)
      factor[i * filled + k] = dot(unit + i * r.width, unit + k * r.width, r.width);
  for (int64_t k = 0; k < filled; ++k) {
    eliminate(factor, filled, k, inverse);
    double* const own = factor + k * filled;
    inverse[k] = memory_pivot(own[k] - dot(own, own, k) + inverse[k]);
  }
  for (int64_t i = filled; i < rows; ++i) eliminate(factor, filled, i, inverse);

  const double* const x = factor + filled * filled;
  for (int64_t i = 0; i < r.n; ++i)
    r.left[i * r.n + i] =
        memory_square(r.gram[i * r.n + i], dot(x + i * filled, x + i * filled, filled));
  for (int64_t i = 0; i < r.n; ++i)
    for (int64_t j = 0; j < r.n; ++j) {
      if (i == j) continue;
      const double bound = std::sqrt(r.left[i * r.n + i]) * std::sqrt(r.left[j * r.n + j]);
      const double covered = dot(x + i * filled, x + j * filled, filled);
      r.left[i * r.n + j] = memory_product(r.gram[i * r.n + j], norm[i] * norm[j], covered, bound);
    }
  return true;
}

}  // namespace OASIS_ISA
}  // namespace oasis
