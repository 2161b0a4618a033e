// Launchers of candidates, SIREN, ORIS and of all three at once.
#include "launch.cuh"
#include "launch.h"
#include "oris.cuh"
#include "select.cuh"
#include "siren.cuh"
#include "siren_grid.cuh"
#include "siren_mean_field.cuh"
#include "siren_rules.cuh"
#include "usable.cuh"

namespace oasis {
namespace cuda {
namespace {

static_assert(kMaxOneLaunch == kBlockExact && kMaxExactSamples == kMaxGridExact, "same limits");
constexpr size_t kRoomForFactor = 96 * 1024;  // beyond, the factor is better off in the L2 cache
constexpr size_t kRoomForSums = 96 * 1024;    // of mean field; more than some devices have

const char* check(int64_t n, int64_t capacity, Rule rule) {
  if (n < 1) return "siren: no samples";
  if (rule == Rule::exact && capacity > kMaxExactSamples)
    return "siren: more than 30 samples for the exact rule";
  if (rule != Rule::exact && n > kMaxRuleSamples) return "siren: more than 4096 samples";
  switch (rule) {  // the compiler asks for a rule that is in oasis/names.def and not here
    case Rule::exact:
    case Rule::mean_field:
    case Rule::pairwise:
    case Rule::residual:
    case Rule::none:
      return nullptr;
  }
  return "siren: no kernel for this rule";
}

// Bytes of shared memory that a layout takes.
size_t exact_bytes(int64_t capacity) {
  Carve carve(nullptr);
  ExactShared shared(carve, capacity);
  return carve.used;
}
size_t rule_bytes(int64_t n, bool with_factor) {
  Carve carve(nullptr);
  RuleShared shared(carve, n, with_factor);
  return carve.used;
}
size_t mean_field_bytes(int64_t n, double* sums) {
  Carve carve(nullptr);
  MeanFieldShared shared(carve, n, sums);
  return carve.used;
}
size_t step_bytes() {
  Carve carve(nullptr);
  carve.take<OrisStep>(1);
  return carve.used;
}
size_t select_bytes(int64_t n) {
  Carve carve(nullptr);
  SelectShared shared(carve, n);
  return carve.used;
}

// Whether one block can have the tables of `capacity` samples in shared memory.
const char* one_block(int64_t capacity, size_t extra, bool* fits) {
  int limit = 0;
  OASIS_CHECK(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &limit));
  *fits = capacity <= kBlockExact && exact_bytes(capacity) + extra <= size_t(limit);
  return nullptr;
}

int64_t grid_capacity(const Siren& s) {  // the grid kernels' first block joins kPrefix samples
  return s.capacity > kPrefix + 2 ? s.capacity : kPrefix + 2;
}

ExactArguments exact_arguments(const Siren& s, int64_t capacity) {
  return {s.gram, s.valid, s.floor, s.n, capacity, s.adjusted, s.order};
}

RuleArguments rule_arguments(const Siren& s, double* factor) {
  return {s.gram, s.valid, s.floor, int(s.n), s.rule, s.ridge, factor, s.adjusted, s.order};
}

MeanFieldArguments mean_field_arguments(const Siren& s, double* sums) {
  return {s.gram, s.valid, s.floor, int(s.n), sums, s.adjusted, s.order};
}

OrisArguments oris_arguments(const Oris& o) {
  return {o.informativeness, o.valid,    o.n,           o.config, o.statistics,
          o.counters,        o.relative, o.probability, o.mask};
}

bool factor_in_shared(const Siren& s) {
  return s.rule == Rule::residual && rule_bytes(s.n, true) <= kRoomForFactor;
}

const char* exact_by_grid(const Siren& s, cudaStream_t stream) {
  const int64_t capacity = grid_capacity(s);
  const ExactArguments e = exact_arguments(s, capacity);
  int processors = 0;
  OASIS_CHECK(device_attribute(cudaDevAttrMultiProcessorCount, &processors));
  Carve tables(nullptr), extend(nullptr);
  ExactTables measure_tables(tables, 0);
  ExtendShared measure_extend(extend);
  OASIS_LAUNCH(siren_prefix_kernel, dim3(1), dim3(kExactThreads), tables.used, stream, e,
               s.workspace);
  OASIS_CHECK(cudaGetLastError());
  for (int m = kPrefix; m + 1 < s.capacity; ++m) {
    const int bits = block_bits(m, processors);
    OASIS_LAUNCH(siren_extend_kernel, dim3(1u << bits), dim3(kGridThreads), extend.used, stream,
                 capacity, s.workspace, m, bits);
    OASIS_CHECK(cudaGetLastError());
    OASIS_LAUNCH(siren_finish_kernel, dim3(1), dim3(kFinishThreads), 0, stream, capacity,
                 s.workspace, m, bits);
    OASIS_CHECK(cudaGetLastError());
  }
  OASIS_LAUNCH(siren_write_kernel, dim3(1), dim3(256), 0, stream, e, s.workspace);
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

}  // namespace

const char* usable(const Candidates& c, void* stream) {
  if (c.usable.n < 1) return "usable: no samples";
  const DeviceGuard guard(c.device);
  OASIS_CHECK(guard.error);
  OASIS_LAUNCH(usable_kernel, dim3(1), dim3(kUsableThreads), kUsableThreads / kWarp * sizeof(Wrong),
               static_cast<cudaStream_t>(stream), c.usable, c.wrong);
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

const char* siren_workspace(const Siren& s, size_t* bytes) {
  *bytes = 0;
  if (const char* error = check(s.n, s.capacity, s.rule)) return error;
  const DeviceGuard guard(s.device);
  OASIS_CHECK(guard.error);
  if (s.rule == Rule::exact) {
    bool fits = false;
    if (const char* error = one_block(s.capacity, 0, &fits)) return error;
    if (fits) return nullptr;
    Carve carve(nullptr);
    GridWorkspace workspace(carve, grid_capacity(s));
    *bytes = carve.used;
  } else if (s.rule == Rule::residual && !factor_in_shared(s)) {
    *bytes = size_t(s.n) * size_t(s.n) * sizeof(double);
  } else if (s.rule == Rule::mean_field && mean_field_bytes(s.n, nullptr) > kRoomForSums) {
    *bytes = 2 * size_t(s.n) * sizeof(double);
  }
  return nullptr;
}

const char* siren(const Siren& s, void* stream) {
  size_t bytes = 0;
  if (const char* error = siren_workspace(s, &bytes)) return error;
  if (s.workspace_bytes < bytes) return "siren: workspace too small";
  const DeviceGuard guard(s.device);
  OASIS_CHECK(guard.error);
  const auto queue = static_cast<cudaStream_t>(stream);
  if (s.rule == Rule::exact && bytes) return exact_by_grid(s, queue);
  if (s.rule == Rule::exact) {
    const size_t shared = exact_bytes(s.capacity);
    OASIS_CHECK(allow_shared(siren_exact_kernel, shared));
    OASIS_LAUNCH(siren_exact_kernel, dim3(1), dim3(kExactThreads), shared, queue,
                 exact_arguments(s, s.capacity));
  } else if (s.rule == Rule::mean_field) {
    double* sums = bytes ? static_cast<double*>(s.workspace) : nullptr;
    const size_t shared = mean_field_bytes(s.n, sums);
    OASIS_CHECK(allow_shared(siren_mean_field_kernel, shared));
    OASIS_LAUNCH(siren_mean_field_kernel, dim3(1), dim3(kMeanFieldThreads), shared, queue,
                 mean_field_arguments(s, sums));
  } else {
    const bool in_shared = factor_in_shared(s);
    const size_t shared = rule_bytes(s.n, in_shared);
    OASIS_CHECK(allow_shared(siren_rule_kernel, shared));
    OASIS_LAUNCH(siren_rule_kernel, dim3(1), dim3(kRuleThreads), shared, queue,
                 rule_arguments(s, static_cast<double*>(s.workspace)), in_shared);
  }
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

const char* oris(const Oris& o, void* stream) {
  if (o.n < 1) return "oris: no samples";
  const DeviceGuard guard(o.device);
  OASIS_CHECK(guard.error);
  OASIS_LAUNCH(oris_kernel, dim3(1), dim3(256), step_bytes(), static_cast<cudaStream_t>(stream),
               oris_arguments(o), o.adjusted);
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

const char* select(const Select& s, int64_t* wrong, int device, void* stream, bool* fits) {
  *fits = false;
  if (const char* error = check(s.n, s.n, s.rule)) return error;
  if (s.n > kMaxOneLaunch) return nullptr;
  const DeviceGuard guard(device);
  OASIS_CHECK(guard.error);
  const auto queue = static_cast<cudaStream_t>(stream);
  const size_t more = select_bytes(s.n);
  if (s.rule == Rule::exact) {
    if (const char* error = one_block(s.n, more, fits)) return error;
    if (!*fits) return nullptr;
    const size_t shared = exact_bytes(s.n) + more;
    OASIS_CHECK(allow_shared(select_exact_kernel, shared));
    OASIS_LAUNCH(select_exact_kernel, dim3(1), dim3(kExactThreads), shared, queue, s, wrong);
  } else if (s.rule == Rule::mean_field) {
    *fits = true;
    OASIS_LAUNCH(select_mean_field_kernel, dim3(1), dim3(kMeanFieldThreads),
                 mean_field_bytes(s.n, nullptr) + more, queue, s, wrong);
  } else {
    *fits = true;
    OASIS_LAUNCH(select_rule_kernel, dim3(1), dim3(kRuleThreads), rule_bytes(s.n, true) + more,
                 queue, s, wrong);
  }
  OASIS_CHECK(cudaGetLastError());
  return nullptr;
}

}  // namespace cuda
}  // namespace oasis
