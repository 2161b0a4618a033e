// Launchers of SIREN across batches: sketches, what the remembered ones leave, the ring they fill.
#include "launch.cuh"
#include "launch.h"
#include "memory.cuh"
#include "sketch.cuh"

namespace oasis {
namespace cuda {
namespace {

constexpr int64_t kMostGroups = 64, kRunsPerGroup = 8;  // sums in between: an eighth of the numbers

SketchArguments sketch_arguments(const Sketch& s) {
  const int64_t first = s.plan.first / s.plan.dim;
  const int64_t runs = (s.plan.first + s.columns - 1) / s.plan.dim + 1 - first;
  // The same whatever the device and the other samples, so no bit depends on them.
  int64_t groups = (runs + kRunsPerGroup - 1) / kRunsPerGroup;
  if (groups > kMostGroups) groups = kMostGroups;
  return {s.data, s.samples, s.columns, s.row_stride, s.plan, first, runs, int(groups), nullptr};
}

template <typename Type>
void launch_sketch(const SketchArguments& a, cudaStream_t stream) {
  OASIS_LAUNCH(sketch_kernel<Type>, dim3(unsigned(a.groups), unsigned(a.samples)),
               dim3(kSketchThreads), 0, stream, a);
}

}  // namespace

const char* sketch_workspace(const Sketch& s, size_t* bytes) {
  *bytes = 0;
  if (s.samples < 1 || s.columns < 1) return "sketch: no samples or no columns";
  if (s.samples > kMaxSketchSamples) return "sketch: more than 65535 samples";
  if (s.plan.dim < 1 || s.plan.dim > INT32_MAX) return "sketch: dim is not in [1, 2^31)";
  *bytes = size_t(s.samples) * size_t(sketch_arguments(s).groups) * size_t(s.plan.dim) * 8;
  return nullptr;
}

const char* sketch(const Sketch& s, void* stream) {
  size_t bytes = 0;
  if (const char* error = sketch_workspace(s, &bytes)) return error;
  if (s.workspace_bytes < bytes) return "sketch: workspace too small";
  const DeviceGuard guard(s.device);
  OASIS_CHECK(guard.error);
  const auto queue = static_cast<cudaStream_t>(stream);
  SketchArguments a = sketch_arguments(s);
  a.partial = static_cast<double*>(s.workspace);
  switch (s.type) {
    case DType::float32:
      launch_sketch<Float32>(a, queue);
      break;
    case DType::float64:
      launch_sketch<Float64>(a, queue);
      break;
    case DType::bfloat16:
      launch_sketch<Bfloat16>(a, queue);
      break;
    case DType::float16:
      launch_sketch<Float16>(a, queue);
      break;
  }
  OASIS_CHECK(cudaGetLastError());
  const int64_t count = s.samples * s.plan.dim;
  OASIS_LAUNCH(sketch_reduce_kernel, dim3(unsigned((count + kSketchThreads - 1) / kSketchThreads)),
               dim3(kSketchThreads), 0, queue, static_cast<const double*>(a.partial), count,
               s.plan.dim, a.groups, s.out);
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

const char* remembered_workspace(const Memory& m, size_t* bytes) {
  *bytes = 0;
  if (m.of.n < 1 || m.of.capacity < 1 || m.of.width < 1) return "remembered: nothing to compare";
  Carve carve(nullptr);
  MemoryWorkspace workspace(carve, m.of);
  *bytes = carve.used;
  return nullptr;
}

const char* remembered(const Memory& m, void* stream) {
  size_t bytes = 0;
  if (const char* error = remembered_workspace(m, &bytes)) return error;
  if (m.workspace_bytes < bytes) return "remembered: workspace too small";
  const DeviceGuard guard(m.device);
  OASIS_CHECK(guard.error);
  const auto queue = static_cast<cudaStream_t>(stream);
  const dim3 rows(unsigned(m.of.capacity + m.of.n)), samples(unsigned(m.of.n));
  OASIS_LAUNCH(memory_unit_kernel, rows, dim3(kRowThreads), 0, queue, m.of, m.workspace);
  OASIS_CHECK(cudaGetLastError());
  OASIS_LAUNCH(memory_cosine_kernel, rows, dim3(kRowThreads), 0, queue, m.of, m.workspace);
  OASIS_CHECK(cudaGetLastError());
  const int64_t warps = (m.of.capacity + m.of.n + kWarp - 1) / kWarp;
  const unsigned threads =
      unsigned(warps * kWarp < kFactorThreads ? warps * kWarp : kFactorThreads);
  OASIS_LAUNCH(memory_factor_kernel, dim3(1), dim3(threads), 0, queue, m.of, m.workspace);
  OASIS_CHECK(cudaGetLastError());
  OASIS_LAUNCH(memory_left_kernel, samples, dim3(kRowThreads), 0, queue, m.of, m.workspace);
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

const char* remember(const Remember& r, void* stream) {
  if (r.n < 1 || r.capacity < 1 || r.width < 1) return "remember: nothing to remember";
  const DeviceGuard guard(r.device);
  OASIS_CHECK(guard.error);
  const RememberArguments a{r.sketch, r.mask, r.selected, r.n, r.width, r.capacity, r.memory};
  OASIS_LAUNCH(remember_kernel, dim3(unsigned(r.n)), dim3(kRowThreads), 0,
               static_cast<cudaStream_t>(stream), a);
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

}  // namespace cuda
}  // namespace oasis
