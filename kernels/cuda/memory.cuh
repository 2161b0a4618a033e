// SIREN across batches (csrc/include/oasis/memory.h). How many rows of the memory are in use is
// read on the device: launches are sized for all, and blocks without a row leave.
//
// Rows: the memory's, then the batch's from `capacity` on. The factor is kept by columns, so that
// the threads of a column's rows read what lies together.
#pragma once
#include "common.cuh"
#include "oasis/memory.h"

namespace oasis {

constexpr int kRowThreads = 64;      // of a block that has a row
constexpr int kFactorThreads = 256;  // of the one block that eliminates

struct MemoryWorkspace {
  double* unit;    // [capacity + n, width] directions of the sketches
  double* factor;  // [capacity, capacity + n]
  double* noise;   // [capacity]
  double* norm;    // [n]
  __host__ __device__ MemoryWorkspace(Carve& carve, const Remembered& r) {
    const int64_t rows = r.capacity + r.n;
    unit = carve.take<double>(rows * r.width);
    factor = carve.take<double>(rows * r.capacity);
    noise = carve.take<double>(r.capacity);
    norm = carve.take<double>(r.n);
  }
};

// What the whole warp agrees on, each lane with its share.
__device__ inline int lane() { return int(threadIdx.x % kWarp); }

__device__ inline double warp_dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = lane(); i < count; i += kWarp) sum += a[i] * b[i];
  return warp_sum(sum);
}

__device__ inline double mean_square(const Remembered& r) {
  double sum = 0, count = 0;
  for (int64_t i = lane(); i < r.n; i += kWarp)
    if (r.valid[i]) sum += r.gram[i * r.n + i], count += 1;
  sum = warp_sum(sum), count = warp_sum(count);
  return count > 0 ? sum / count : 0;
}

// Every warp computes the whole norm: rows are short, and that takes no barrier.
__device__ inline SketchNorm sketch_norm(const double* row, int64_t width) {
  double top = 0;
  for (int64_t i = lane(); i < width; i += kWarp) top = fmax(top, fabs(row[i]));
  top = warp_largest({top, lane()}).value;
  SketchNorm s{near_one(top), 0};
  double sum = 0;
  for (int64_t i = lane(); i < width; i += kWarp) sum += row[i] * s.to_unit * (row[i] * s.to_unit);
  s.norm = sqrt(warp_sum(sum));
  return s;
}

// A block per row: directions, the memory's noise, the batch's norms and rescaled sketches.
__global__ void __launch_bounds__(kRowThreads)
    memory_unit_kernel(const Remembered r, void* workspace) {
  Carve carve(workspace);
  const MemoryWorkspace w(carve, r);
  const int64_t row = blockIdx.x, i = row - r.capacity;
  const bool in_memory = i < 0;
  if (in_memory && row >= memory_filled(*r.selected, r.capacity)) return;
  const double norm = in_memory ? 1 : r.valid[i] ? sqrt(r.gram[i * r.n + i]) : 0;
  const double* const from = in_memory ? r.memory + row * r.width : r.sketch + i * r.width;
  SketchNorm s{1, 0};  // of a sample that does not count, whatever its sketch may hold
  if (norm > 0) s = sketch_norm(from, r.width);
  for (int64_t p = threadIdx.x; p < r.width; p += kRowThreads) {
    const double u = s.direction(from[p]);
    w.unit[row * r.width + p] = u;
    if (!in_memory) r.scaled[i * r.width + p] = norm * u;
  }
  const double mean = in_memory ? mean_square(r) : 0;
  if (threadIdx.x != 0) return;
  if (in_memory)
    w.noise[row] = memory_noise(r.ridge, mean, s.square());
  else
    w.norm[i] = norm;
}

// A block per row, a warp per cosine with a row of the memory; below the diagonal, and on it.
__global__ void __launch_bounds__(kRowThreads)
    memory_cosine_kernel(const Remembered r, void* workspace) {
  Carve carve(workspace);
  const MemoryWorkspace w(carve, r);
  const int64_t row = blockIdx.x, filled = memory_filled(*r.selected, r.capacity);
  if (row < r.capacity && row >= filled) return;
  for (int64_t k = threadIdx.x / kWarp; k < filled && k <= row; k += kRowThreads / kWarp) {
    const double cosine = warp_dot(w.unit + row * r.width, w.unit + k * r.width, r.width);
    if (lane() == 0) w.factor[k * (r.capacity + r.n) + row] = cosine + (k == row ? w.noise[k] : 0);
  }
}

// Cholesky of the memory's rows with the batch's below, column by column. The diagonal keeps what
// is left of it, not its root.
__global__ void __launch_bounds__(kFactorThreads, 1)
    memory_factor_kernel(const Remembered r, void* workspace) {
  Carve carve(workspace);
  const MemoryWorkspace w(carve, r);
  const int64_t filled = memory_filled(*r.selected, r.capacity), stride = r.capacity + r.n;
  for (int64_t k = 0; k < filled; ++k) {
    double* const column = w.factor + k * stride;
    for (int64_t a = k + threadIdx.x; a < filled + r.n; a += blockDim.x) {
      const int64_t row = a < filled ? a : r.capacity + a - filled;
      double rest = column[row];
      for (int64_t j = 0; j < k; ++j) rest -= w.factor[j * stride + row] * w.factor[j * stride + k];
      column[row] = rest;
    }
    __syncthreads();  // the column's diagonal is known
    const double inverse = memory_pivot(column[k]);
    for (int64_t a = k + threadIdx.x; a < filled + r.n; a += blockDim.x)
      if (a > k) column[a < filled ? a : r.capacity + a - filled] *= inverse;
    __syncthreads();  // the column is complete
  }
}

// A block per sample i, a thread per sample j.
__global__ void __launch_bounds__(kRowThreads)
    memory_left_kernel(const Remembered r, const void* workspace) {
  Carve carve(workspace);
  const MemoryWorkspace w(carve, r);
  const int64_t i = blockIdx.x, n = r.n, filled = memory_filled(*r.selected, r.capacity);
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    double both = 0, own = 0, other = 0;
    for (int64_t k = 0; k < filled; ++k) {
      const double* const x = w.factor + k * (r.capacity + n) + r.capacity;
      both += x[i] * x[j], own += x[i] * x[i], other += x[j] * x[j];
    }
    const double square = memory_square(r.gram[i * n + i], own);
    const double bound = sqrt(square) * sqrt(memory_square(r.gram[j * n + j], other));
    const double product = memory_product(r.gram[i * n + j], w.norm[i] * w.norm[j], both, bound);
    r.left[i * n + j] = filled == 0 ? r.gram[i * n + j] : i == j ? square : product;
  }
}

struct RememberArguments {
  const double* sketch;  // [n, width]
  const bool* mask;      // [n]
  const int64_t* selected;
  int64_t n, width, capacity;
  double* memory;  // [capacity, width]
};

// A block per sample; every warp counts the others of the mask for itself.
__global__ void __launch_bounds__(kRowThreads) remember_kernel(const RememberArguments r) {
  const int64_t i = blockIdx.x;
  if (!r.mask[i]) return;
  double before = 0, count = 0;
  for (int64_t j = lane(); j < r.n; j += kWarp)
    if (r.mask[j]) count += 1, before += j < i;
  count = warp_sum(count), before = warp_sum(before);
  const int64_t slot = memory_slot(*r.selected, int64_t(count), int64_t(before), r.capacity);
  if (slot < 0) return;
  for (int64_t p = threadIdx.x; p < r.width; p += kRowThreads)
    r.memory[slot * r.width + p] = r.sketch[i * r.width + p];
}

}  // namespace oasis
