// Serves the launchers of kernels/cuda, run by the emulator (tests/sanitized/serve.h).
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <string>

#include "cuda_fp16.h"
#include "cuda_pipeline_primitives.h"
#include "faults.cuh"
#include "launch.h"
#include "sanitized/serve.h"

namespace {

using serving::Request;

const char* gram(const Request& r) {
  oasis::cuda::Gram g{};
  g.data = r.buffer<char>(0) + r.integers.at(5);
  g.type = static_cast<oasis::DType>(r.integers.at(0));
  g.samples = r.integers.at(1);
  g.columns = r.integers.at(2);
  g.row_stride = r.integers.at(3);
  g.add = r.integers.at(4);
  g.gram = r.buffer<double>(1);
  if (const char* error = oasis::cuda::gram_workspace(g, &g.workspace_bytes)) return error;
  const std::unique_ptr<char[]> workspace(new char[g.workspace_bytes]);
  g.workspace = workspace.get();
  return oasis::cuda::gram(g, nullptr);
}

// The rows of the buffer, moved so far apart that their distance needs 64 bits. Only the pages
// that hold them exist.
const char* gram_far(const Request& r) {
  const size_t row = r.sizes.at(0) / size_t(r.integers.at(1));
  const size_t stride = size_t(r.integers.at(3)) * (row / size_t(r.integers.at(2)));
  const size_t length = stride * size_t(r.integers.at(1) - 1) + row;
  void* space = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return "no address space";
  Request far = r;
  far.buffers[0] = static_cast<unsigned char*>(space);
  for (size_t i = 0; i < size_t(r.integers.at(1)); ++i)
    std::memcpy(far.buffers[0] + i * stride, r.buffers[0] + i * row, row);
  const char* error = gram(far);
  munmap(space, length);
  return error;
}

oasis::cuda::Siren siren_of(const Request& r) {
  oasis::cuda::Siren s{};
  s.n = r.integers.at(0);
  s.capacity = r.integers.at(1);
  s.rule = static_cast<oasis::Rule>(r.integers.at(2));
  s.ridge = r.doubles.at(0);
  s.gram = r.buffer<double>(0);
  s.valid = r.buffer<bool>(1);
  s.floor = r.buffer<double>(2);
  s.adjusted = r.buffer<double>(3);
  s.order = r.buffer<int64_t>(4);
  return s;
}

// The options from double `i` on (serving::oris_config).
// Buffers from `b` on: statistics, counters, relative, probability, mask.
void options(const Request& r, size_t i, size_t b, oasis::cuda::Oris* o) {
  o->config = serving::oris_config(r, i);
  o->statistics = r.buffer<double>(b);
  o->counters = r.buffer<int64_t>(b + 1);
  o->relative = r.buffer<double>(b + 2);
  o->probability = r.buffer<double>(b + 3);
  o->mask = r.buffer<bool>(b + 4);
}

const char* siren(const Request& r) {
  oasis::cuda::Siren s = siren_of(r);
  if (const char* error = oasis::cuda::siren_workspace(s, &s.workspace_bytes)) return error;
  const std::unique_ptr<char[]> workspace(new char[s.workspace_bytes]);
  s.workspace = workspace.get();
  return oasis::cuda::siren(s, nullptr);
}

// Integers: n, width of the sketches (0: none), whether there are valid and scores, raises,
// products. Buffers: gram, valid, scores, sketch, then left, informativeness, valid, skipped,
// wrong.
const char* usable(const Request& r) {
  oasis::cuda::Candidates c{};
  oasis::Usable& u = c.usable;
  u.n = r.integers.at(0);
  u.width = r.integers.at(1);
  u.gram = r.buffer<double>(0);
  u.given = r.integers.at(2) ? r.buffer<bool>(1) : nullptr;
  u.scores = r.integers.at(3) ? r.buffer<double>(2) : nullptr;
  u.sketch = u.width ? r.buffer<double>(3) : nullptr;
  u.raises = r.integers.at(4);
  u.products = r.integers.at(5);
  u.left = r.buffer<double>(4);
  u.informativeness = r.buffer<double>(5);
  u.valid = r.buffer<bool>(6);
  u.skipped = r.buffer<bool>(7);
  c.wrong = r.buffer<int64_t>(8);
  return oasis::cuda::usable(c, nullptr);
}

const char* oris(const Request& r) {
  oasis::cuda::Oris o{};
  o.n = r.integers.at(0);
  o.informativeness = r.buffer<double>(0);
  o.adjusted = r.buffer<double>(1);
  o.valid = r.buffer<bool>(2);
  options(r, 0, 3, &o);
  return oasis::cuda::oris(o, nullptr);
}

const char* select(const Request& r) {
  bool fits = false;
  const oasis::Select s = serving::select_of(r, static_cast<oasis::Rule>(r.integers.at(5)));
  if (const char* error = oasis::cuda::select(s, r.buffer<int64_t>(12), 0, nullptr, &fits))
    return error;
  return fits ? nullptr : "does not fit";
}

const char* sketch(const Request& r) {
  oasis::cuda::Sketch s{};
  s.data = r.buffer<void>(0);
  s.type = static_cast<oasis::DType>(r.integers.at(0));
  s.samples = r.integers.at(1);
  s.columns = r.integers.at(2);
  s.row_stride = r.integers.at(3);
  s.plan = {r.integers.at(4), r.integers.at(5), uint64_t(r.integers.at(6)), r.integers.at(7) != 0};
  s.out = r.buffer<double>(1);
  if (const char* error = oasis::cuda::sketch_workspace(s, &s.workspace_bytes)) return error;
  const std::unique_ptr<char[]> workspace(new char[s.workspace_bytes]);
  s.workspace = workspace.get();
  return oasis::cuda::sketch(s, nullptr);
}

// Integers: n, width, capacity. Buffers: gram, sketch, valid, memory, counters, left, scaled.
const char* remembered(const Request& r) {
  oasis::cuda::Memory m{};
  m.of = {r.buffer<double>(0),
          r.buffer<double>(1),
          r.buffer<bool>(2),
          r.buffer<double>(3),
          r.buffer<int64_t>(4) + oasis::kSelected,
          r.integers.at(0),
          r.integers.at(2),
          r.integers.at(1),
          r.doubles.at(0),
          r.buffer<double>(5),
          r.buffer<double>(6)};
  if (const char* error = oasis::cuda::remembered_workspace(m, &m.workspace_bytes)) return error;
  const std::unique_ptr<char[]> workspace(new char[m.workspace_bytes]);
  m.workspace = workspace.get();
  return oasis::cuda::remembered(m, nullptr);
}

// Integers: n, width, capacity. Buffers: sketch, mask, counters, memory.
const char* remember(const Request& r) {
  const oasis::cuda::Remember m{r.buffer<double>(0),
                                r.buffer<bool>(1),
                                r.buffer<int64_t>(2) + oasis::kSelected,
                                r.integers.at(0),
                                r.integers.at(1),
                                r.integers.at(2),
                                r.buffer<double>(3),
                                0};
  return oasis::cuda::remember(m, nullptr);
}

const char* fault(const Request& r) {
  const auto which = static_cast<oasis::Fault>(r.integers.at(0));
  const unsigned threads = unsigned(r.integers.at(1)), blocks = unsigned(r.integers.at(2));
  oasis::Carve carve(nullptr);
  carve.take<float>(threads);
  carve.take<float>(threads);
  const float* in = r.buffer<float>(0);
  float* out = r.buffer<float>(1);
  cudaSetDevice(0);
  OASIS_LAUNCH(oasis::fault_kernel, dim3(blocks), dim3(threads), carve.used, nullptr, which, in,
               out);
  cudaSetDevice(1);
  return nullptr;
}

const char* configure(const std::string& name, const std::vector<int64_t>& v) {
  emulator::schedule(static_cast<emulator::Order>(v.at(0)));
  emulator::limits(int(v.at(1)), size_t(v.at(2)));
  emulator::drop_barrier(name.c_str(), int(v.at(3)));
  return nullptr;
}

const char* serve(const std::string& name, const Request& r) {
  if (name == "gram") return gram(r);
  if (name == "gram_far") return gram_far(r);
  if (name == "siren") return siren(r);
  if (name == "oris") return oris(r);
  if (name == "usable") return usable(r);
  if (name == "select") return select(r);
  if (name == "sketch") return sketch(r);
  if (name == "remembered") return remembered(r);
  if (name == "remember") return remember(r);
  if (name == "fault") return fault(r);
  const std::string prefix = "configure:";  // configure:FILE order,processors,shared,line
  if (name.compare(0, prefix.size(), prefix) == 0)
    return configure(name.substr(prefix.size()), r.integers);
  return "no such kernel";
}

}  // namespace

int main() {
  return serving::run([](const std::string& name, const Request& r) -> std::string {
    const char* error = serve(name, r);
    int device = 0;
    const bool restored = cudaGetDevice(&device) == cudaSuccess && device == 1;
    if (!restored) std::exit(2);
    return error ? error : "";
  });
}
