// Launcher of gram.cuh: picks tile and split, passes the workspace on.
#include "gram_lanes.cuh"
#include "gram_tensor.cuh"
#include "launch.cuh"
#include "launch.h"

namespace oasis {
namespace cuda {
namespace {

struct Plan {
  int rows;  // of a tile
  int64_t tiles, splits, columns_per_block;
  size_t bytes;  // of the workspace
};

int64_t element_size(DType type) {
  return type == DType::float64 ? 8 : type == DType::float32 ? 4 : 2;
}

// Blocks that a processor's registers take, and the bytes of one of their buffers.
struct Residents {
  int most, buffer;
};
template <template <typename, int, bool> class Cells, typename Type>
Residents residents(const Plan& plan) {
  if (plan.rows == 16) return {Cells<Type, 16, true>::kResident, Cells<Type, 16, true>::kBuffer};
  if (plan.tiles == 1) return {Cells<Type, 64, true>::kResident, Cells<Type, 64, true>::kBuffer};
  return {Cells<Type, 64, false>::kResident, Cells<Type, 64, false>::kBuffer};
}

const char* make_plan(const Gram& g, Plan* plan) {
  if (g.samples < 1 || g.columns < 1) return "gram: no samples or no columns";
  plan->rows = g.samples <= 16 ? 16 : 64;
  plan->tiles = (g.samples + plan->rows - 1) / plan->rows;
  if (plan->tiles > 256) return "gram: more than 16384 samples";
  int processors = 0, shared = 0;
  OASIS_CHECK(device_attribute(cudaDevAttrMultiProcessorCount, &processors));
  OASIS_CHECK(device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &shared));
  const int64_t stage = (plan->rows == 16 ? 1024 : 256) / element_size(g.type);
  const int64_t stages = (g.columns + stage - 1) / stage;
  // One wave of blocks: what registers and shared memory take. Pairs of tiles share them.
  const Residents of = element_size(g.type) == 2 ? residents<TensorCores, Float16>(*plan)
                                                 : residents<CudaCores, Float32>(*plan);
  int64_t resident = shared / (2 * of.buffer + 1024);
  resident = resident < 1 ? 1 : resident > of.most ? of.most : resident;
  const int64_t pairs = plan->tiles * (plan->tiles + 1) / 2;
  const int64_t wanted = (processors * resident + pairs - 1) / pairs;
  // A block should still have a few stages to overlap.
  const int64_t useful = (stages + 3) / 4;
  int64_t splits = wanted < useful ? wanted : useful;
  const int64_t each = (stages + splits - 1) / splits;
  splits = (stages + each - 1) / each;
  plan->splits = splits;
  plan->columns_per_block = each * stage;
  plan->bytes = size_t(pairs * splits * plan->rows * plan->rows) * sizeof(double);
  return nullptr;
}

template <typename Cells>
const char* launch(const Gram& g, const Plan& plan, double* partial, cudaStream_t stream) {
  constexpr int kRows = Cells::kRows;
  const int64_t pairs = Cells::kDiagonal ? plan.tiles : plan.tiles * (plan.tiles - 1) / 2;
  GramArguments a{};
  a.data = g.data;
  a.samples = g.samples;
  a.columns = g.columns;
  a.row_stride = g.row_stride;
  a.columns_per_block = plan.columns_per_block;
  const int64_t size = element_size(g.type);
  a.aligned = reinterpret_cast<uintptr_t>(g.data) % 16 == 0 && g.row_stride * size % 16 == 0;
  a.tiles = int(plan.tiles);
  a.partial = partial;
  const auto kernel = gram_kernel<Cells>;
  const size_t shared = 2 * Cells::kBuffer;
  OASIS_CHECK(allow_shared(kernel, shared));
  OASIS_LAUNCH(kernel, dim3(unsigned(plan.splits), unsigned(pairs)), dim3(Cells::kThreads), shared,
               stream, a);
  OASIS_CHECK(cudaGetLastError());
  const auto reduce = gram_reduce_kernel<kRows, Cells::kDiagonal>;
  OASIS_LAUNCH(reduce, dim3(kRows * kRows * kWarp / 256, unsigned(pairs)), dim3(256), 0, stream,
               static_cast<const double*>(partial), g.samples, int(plan.splits), g.add, g.gram);
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

template <template <typename, int, bool> class Cells, typename Type>
const char* launch_tiles(const Gram& g, const Plan& plan, cudaStream_t stream) {
  double* partial = static_cast<double*>(g.workspace);
  if (plan.rows == 16) return launch<Cells<Type, 16, true>>(g, plan, partial, stream);
  const char* error = launch<Cells<Type, 64, true>>(g, plan, partial, stream);
  if (error || plan.tiles == 1) return error;
  partial += plan.tiles * plan.splits * 64 * 64;
  return launch<Cells<Type, 64, false>>(g, plan, partial, stream);
}

}  // namespace

const char* gram_workspace(const Gram& g, size_t* bytes) {
  const DeviceGuard guard(g.device);
  OASIS_CHECK(guard.error);
  Plan plan{};
  const char* error = make_plan(g, &plan);
  *bytes = plan.bytes;
  return error;
}

const char* gram(const Gram& g, void* stream) {
  const DeviceGuard guard(g.device);
  OASIS_CHECK(guard.error);
  Plan plan{};
  if (const char* error = make_plan(g, &plan)) return error;
  if (g.workspace_bytes < plan.bytes) return "gram: workspace too small";
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (g.type) {
    case DType::float32:
      return launch_tiles<CudaCores, Float32>(g, plan, queue);
    case DType::float64:
      return launch_tiles<CudaCores, Float64>(g, plan, queue);
    case DType::bfloat16:
      return launch_tiles<TensorCores, Bfloat16>(g, plan, queue);
    default:
      return launch_tiles<TensorCores, Float16>(g, plan, queue);
  }
}

}  // namespace cuda
}  // namespace oasis
