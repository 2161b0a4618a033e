// Bindings of the CUDA launchers (kernels/cuda/launch.h). Device addresses and a stream in; nothing
// is allocated, nothing waits for the device. Included by bindings.cpp where CUDA was compiled in.
#include "cuda/launch.h"

namespace oasis {
namespace {

void raise_if(const char* error) {
  if (error) throw std::runtime_error(std::string("CUDA kernel: ") + error);
}

cuda::Gram cuda_gram_of(const py::kwargs& k) {
  cuda::Gram g{};
  g.data = pointer<const void>(k, "data");
  g.type = named<DType>(field<std::string>(k, "dtype"));
  g.samples = field<int64_t>(k, "samples");
  g.columns = field<int64_t>(k, "columns");
  g.row_stride = field<int64_t>(k, "row_stride");
  g.add = field<bool>(k, "add");
  g.gram = pointer<double>(k, "gram");
  g.workspace = pointer<void>(k, "workspace");
  g.workspace_bytes = field<size_t>(k, "workspace_bytes");
  g.device = field<int>(k, "device");
  return g;
}

cuda::Siren cuda_siren_of(const py::kwargs& k) {
  cuda::Siren s{};
  s.gram = pointer<const double>(k, "gram");
  s.valid = pointer<const bool>(k, "valid");
  s.floor = pointer<const double>(k, "floor");
  s.n = field<int64_t>(k, "n");
  s.capacity = field<int64_t>(k, "capacity");
  s.rule = named<Rule>(field<std::string>(k, "method"));
  s.ridge = field<double>(k, "ridge");
  s.adjusted = pointer<double>(k, "adjusted");
  s.order = pointer<int64_t>(k, "order");
  s.workspace = pointer<void>(k, "workspace");
  s.workspace_bytes = field<size_t>(k, "workspace_bytes");
  s.device = field<int>(k, "device");
  return s;
}

cuda::Oris cuda_oris_of(const py::kwargs& k) {
  cuda::Oris o{};
  o.informativeness = pointer<const double>(k, "informativeness");
  o.adjusted = pointer<const double>(k, "adjusted");
  o.valid = pointer<const bool>(k, "valid");
  o.n = field<int64_t>(k, "n");
  o.config = oris_config(field<std::vector<double>>(k, "options"));
  o.statistics = pointer<double>(k, "statistics");
  o.counters = pointer<int64_t>(k, "counters");
  o.relative = pointer<double>(k, "relative");
  o.probability = pointer<double>(k, "probability");
  o.mask = pointer<bool>(k, "mask");
  o.device = field<int>(k, "device");
  return o;
}

cuda::Sketch cuda_sketch_of(const py::kwargs& k) {
  cuda::Sketch s{};
  s.data = pointer<const void>(k, "data");
  s.type = named<DType>(field<std::string>(k, "dtype"));
  s.samples = field<int64_t>(k, "samples");
  s.columns = field<int64_t>(k, "columns");
  s.row_stride = field<int64_t>(k, "row_stride");
  s.plan = {field<int64_t>(k, "first"), field<int64_t>(k, "dim"), field<uint64_t>(k, "seed"),
            field<bool>(k, "exact")};
  s.out = pointer<double>(k, "out");
  s.workspace = pointer<void>(k, "workspace");
  s.workspace_bytes = field<size_t>(k, "workspace_bytes");
  s.device = field<int>(k, "device");
  return s;
}

cuda::Memory cuda_memory_of(const py::kwargs& k) {
  return {remembered_fields(k), pointer<void>(k, "workspace"), field<size_t>(k, "workspace_bytes"),
          field<int>(k, "device")};
}

cuda::Candidates cuda_candidates_of(const py::kwargs& k) {
  cuda::Candidates c{};
  c.usable.gram = pointer<const double>(k, "gram");
  c.usable.given = pointer<const bool>(k, "given");
  c.usable.scores = pointer<const double>(k, "scores");
  c.usable.sketch = pointer<const double>(k, "sketch");
  c.usable.n = field<int64_t>(k, "n");
  c.usable.width = field<int64_t>(k, "width");
  c.usable.products = field<bool>(k, "products");
  c.usable.raises = field<bool>(k, "raises");
  c.usable.left = pointer<double>(k, "left");
  c.usable.informativeness = pointer<double>(k, "informativeness");
  c.usable.valid = pointer<bool>(k, "valid");
  c.usable.skipped = pointer<bool>(k, "skipped");
  c.wrong = pointer<int64_t>(k, "wrong");
  c.device = field<int>(k, "device");
  return c;
}

size_t cuda_gram_workspace(const py::kwargs& k) {
  size_t bytes = 0;
  raise_if(cuda::gram_workspace(cuda_gram_of(k), &bytes));
  return bytes;
}
void cuda_gram(const py::kwargs& k) {
  raise_if(cuda::gram(cuda_gram_of(k), pointer<void>(k, "stream")));
}
void cuda_usable(const py::kwargs& k) {
  raise_if(cuda::usable(cuda_candidates_of(k), pointer<void>(k, "stream")));
}
size_t cuda_siren_workspace(const py::kwargs& k) {
  size_t bytes = 0;
  raise_if(cuda::siren_workspace(cuda_siren_of(k), &bytes));
  return bytes;
}
void cuda_siren(const py::kwargs& k) {
  raise_if(cuda::siren(cuda_siren_of(k), pointer<void>(k, "stream")));
}
void cuda_oris(const py::kwargs& k) {
  raise_if(cuda::oris(cuda_oris_of(k), pointer<void>(k, "stream")));
}
// False where the device has too little shared memory for one launch; nothing ran then.
bool cuda_select(const py::kwargs& k) {
  bool fits = false;
  raise_if(cuda::select(select_fields(k), pointer<int64_t>(k, "fault"), field<int>(k, "device"),
                        pointer<void>(k, "stream"), &fits));
  return fits;
}

size_t cuda_sketch_workspace(const py::kwargs& k) {
  size_t bytes = 0;
  raise_if(cuda::sketch_workspace(cuda_sketch_of(k), &bytes));
  return bytes;
}
void cuda_sketch(const py::kwargs& k) {
  raise_if(cuda::sketch(cuda_sketch_of(k), pointer<void>(k, "stream")));
}
size_t cuda_remembered_workspace(const py::kwargs& k) {
  size_t bytes = 0;
  raise_if(cuda::remembered_workspace(cuda_memory_of(k), &bytes));
  return bytes;
}
void cuda_remembered(const py::kwargs& k) {
  raise_if(cuda::remembered(cuda_memory_of(k), pointer<void>(k, "stream")));
}
void cuda_remember(const py::kwargs& k) {
  const cuda::Remember r{pointer<const double>(k, "sketch"),
                         pointer<const bool>(k, "mask"),
                         pointer<const int64_t>(k, "counters") + kSelected,
                         field<int64_t>(k, "n"),
                         field<int64_t>(k, "width"),
                         field<int64_t>(k, "capacity"),
                         pointer<double>(k, "memory"),
                         field<int>(k, "device")};
  raise_if(cuda::remember(r, pointer<void>(k, "stream")));
}

void bind_cuda(py::module_& m) {
  m.attr("CUDA_ONE_LAUNCH") = cuda::kMaxOneLaunch;
  m.attr("CUDA_MAX_SAMPLES") = cuda::kMaxRuleSamples;
  m.attr("CUDA_MAX_SKETCH_SAMPLES") = cuda::kMaxSketchSamples;
  m.def("cuda_gram_workspace", &cuda_gram_workspace);
  m.def("cuda_gram", &cuda_gram);
  m.def("cuda_usable", &cuda_usable);
  m.def("cuda_siren_workspace", &cuda_siren_workspace);
  m.def("cuda_siren", &cuda_siren);
  m.def("cuda_oris", &cuda_oris);
  m.def("cuda_select", &cuda_select);
  m.def("cuda_sketch_workspace", &cuda_sketch_workspace);
  m.def("cuda_sketch", &cuda_sketch);
  m.def("cuda_remembered_workspace", &cuda_remembered_workspace);
  m.def("cuda_remembered", &cuda_remembered);
  m.def("cuda_remember", &cuda_remember);
}

}  // namespace
}  // namespace oasis
