// Python bindings: addresses, sizes and strides in; nothing is allocated for the caller. The
// tensors behind the addresses are checked and kept alive by oasis/ops.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "oasis/mean_field.h"
#include "oasis/oris.h"
#include "oasis/philox.h"
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace py = pybind11;
using namespace oasis;

namespace oasis {
#if defined(OASIS_HAS_CUDA)
int cuda_device_count();  // kernels/cuda/device.cu
#endif

namespace {

using Address = uintptr_t;
template <typename T>
T* at(Address a) {
  return reinterpret_cast<T*>(a);
}

DType dtype_of(const std::string& name) {
  if (name == "float32") return DType::float32;
  if (name == "float64") return DType::float64;
  if (name == "bfloat16") return DType::bfloat16;
  if (name == "float16") return DType::float16;
  throw py::type_error("dtype: got " + name);
}

// Merges dimensions that one stride can walk, and drops those of size 1.
StridedSamples describe(Address data, const std::string& dtype, const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides) {
  StridedSamples s{};
  s.data = at<const void>(data);
  s.dtype = dtype_of(dtype);
  s.samples = sizes.at(0);
  s.sample_stride = strides.at(0);
  for (size_t d = 1; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    if (s.dims && s.strides[s.dims - 1] == sizes[d] * strides[d]) {
      s.sizes[s.dims - 1] *= sizes[d];
      s.strides[s.dims - 1] = strides[d];
      continue;
    }
    if (s.dims == kMaxDims)
      throw py::value_error("grads: more than 8 separately strided dimensions");
    s.sizes[s.dims] = sizes[d];
    s.strides[s.dims++] = strides[d];
  }
  if (s.dims == 0) s.sizes[0] = s.strides[0] = 1, s.dims = 1;
  return s;
}

void gram(Address data, const std::string& dtype, const std::vector<int64_t>& sizes,
          const std::vector<int64_t>& strides, bool wide, Address out) {
  const StridedSamples samples = describe(data, dtype, sizes, strides);
  py::gil_scoped_release unlocked;
  kernels().gram(samples, wide, at<double>(out));
}

// Runs on the valid samples alone: an invalid one may neither be picked nor enter a mean.
// `informativeness` 0 is the diagonal of `gram`.
int64_t siren(Address gram, Address valid, int64_t n, const std::string& method, double ridge,
              double floor, Address adjusted, Address order, Address informativeness) {
  const Rule rule = method == "exact"        ? Rule::exact
                    : method == "mean_field" ? Rule::mean_field
                    : method == "pairwise"   ? Rule::pairwise
                    : method == "residual"   ? Rule::residual
                                             : Rule::none;
  py::gil_scoped_release unlocked;
  const double* k = at<const double>(gram);
  const bool* ok = at<const bool>(valid);
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < n; ++i)
    if (ok[i]) kept.push_back(i);
  const int64_t m = int64_t(kept.size());
  std::vector<double> compact(size_t(m * m)), scores(static_cast<size_t>(m));
  std::vector<double> score(static_cast<size_t>(m));
  std::vector<int64_t> picks(static_cast<size_t>(m));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < m; ++j)
      compact[size_t(i * m + j)] = k[kept[size_t(i)] * n + kept[size_t(j)]];
  const double* given = at<const double>(informativeness);
  for (int64_t i = 0; i < m; ++i)
    score[size_t(i)] = given ? given[kept[size_t(i)]] : compact[size_t(i * m + i)];
  int64_t made = 0;
  if (m > 0) {
    made = kernels().siren(compact.data(), score.data(), m, rule, ridge, floor, scores.data(),
                           picks.data());
    if (made < 0) throw std::bad_alloc();
  }
  double* a = at<double>(adjusted);
  int64_t* o = at<int64_t>(order);
  for (int64_t i = 0; i < n; ++i) a[i] = 0, o[i] = -1;
  // Stopped early: what was not picked keeps its raw score.
  for (int64_t i : kept) a[i] = given ? given[i] : k[i * n + i];
  for (int64_t i = 0; i < made; ++i) {
    o[i] = kept[size_t(picks[size_t(i)])];
    a[o[i]] = scores[size_t(picks[size_t(i)])];
  }
  return made;
}

// One alternating sum, for the tests of its error.
double mean_field_sum(double score, double mean, double square, double linear, double quadratic,
                      int n) {
  MeanField f{square, linear, quadratic, score, mean, std::sqrt(square), std::sqrt(mean)};
  mean_field_bound(f, n);
  std::vector<MeanFieldTable> table(1);
  table[0].start();
  for (int i = 0; i < n; ++i) table[0].advance();
  return table[0].sum(f);
}

OrisConfig oris_config(double ratio, double beta, const std::string& scale, const std::string& draw,
                       int64_t warmup, const std::string& recursion, double gain, double slack,
                       double temperature) {
  OrisConfig config{};
  config.ratio = ratio;
  config.beta = beta;
  config.scale = scale == "sample"  ? Scale::sample
                 : scale == "batch" ? Scale::batch
                 : scale == "raw"   ? Scale::raw
                                    : Scale::within;
  config.draw = draw == "shared"       ? Draw::shared
                : draw == "systematic" ? Draw::systematic
                : draw == "top"        ? Draw::top
                                       : Draw::bernoulli;
  config.warmup = warmup;
  config.recursion = recursion == "released" ? Recursion::released : Recursion::equations;
  config.gain = gain;
  config.slack = slack;
  config.temperature = temperature;
  return config;
}

int64_t oris_step(Address informativeness, Address adjusted, Address valid, int64_t n,
                  Address statistics, Address counters, double ratio, double beta,
                  const std::string& scale, const std::string& draw, int64_t warmup,
                  const std::string& recursion, double gain, double slack, double temperature,
                  Address relative, Address probability, Address mask) {
  const OrisConfig config =
      oris_config(ratio, beta, scale, draw, warmup, recursion, gain, slack, temperature);
  return oris(at<const double>(informativeness), at<const double>(adjusted), at<const bool>(valid),
              n, config, at<double>(statistics), at<int64_t>(counters), at<double>(relative),
              at<double>(probability), at<bool>(mask));
}

double oris_stops(Address informativeness, Address valid, int64_t n, Address statistics,
                  Address counters, double ratio, double beta, const std::string& scale,
                  const std::string& draw, int64_t warmup, const std::string& recursion,
                  double gain, double slack, double temperature) {
  const OrisConfig config =
      oris_config(ratio, beta, scale, draw, warmup, recursion, gain, slack, temperature);
  return oris_stop(at<const double>(informativeness), at<const bool>(valid), n, config,
                   at<const double>(statistics), at<const int64_t>(counters));
}

// Field by field from keyword arguments: two dozen positional addresses would be unreadable.
template <typename T>
T field(const py::kwargs& k, const char* name) {
  return k[name].cast<T>();
}
template <typename T>
T* pointer(const py::kwargs& k, const char* name) {
  return at<T>(k[name].cast<Address>());
}

void head_block(bool float64, const py::kwargs& k) {
  HeadBlock b{};
  b.logits = pointer<void>(k, "logits");
  b.tokens = field<int64_t>(k, "tokens");
  b.columns = field<int64_t>(k, "columns");
  b.column_stride = field<int64_t>(k, "column_stride");
  b.first = field<int64_t>(k, "first");
  b.bias = pointer<const void>(k, "bias");
  b.scale = field<double>(k, "scale");
  b.softcap = field<double>(k, "softcap");
  b.labels = pointer<const int64_t>(k, "labels");
  b.label_columns = pointer<const int64_t>(k, "label_columns");
  b.label_count = field<int64_t>(k, "label_count");
  b.label_first = field<int64_t>(k, "label_first");
  b.gathers = pointer<void>(k, "gathers");
  b.distinct = field<int64_t>(k, "distinct");
  b.peak = pointer<double>(k, "peak");
  b.ridge = pointer<double>(k, "ridge");
  b.maximum = pointer<double>(k, "maximum");
  b.label_logit = pointer<double>(k, "label_logit");
  b.sum = pointer<double>(k, "sum");
  b.weighted = pointer<double>(k, "weighted");
  b.squares = pointer<double>(k, "squares");
  b.factor = pointer<double>(k, "factor");
  py::gil_scoped_release unlocked;
  kernels().head_block(b, float64);
}

void head_rescale(Address products, Address factor, int64_t tokens, bool float64) {
  py::gil_scoped_release unlocked;
  kernels().head_rescale(at<void>(products), at<const double>(factor), tokens, float64);
}

void head_reduce(bool float64, const py::kwargs& k) {
  HeadReduce r{};
  r.products = pointer<const void>(k, "products");
  r.inner = pointer<const void>(k, "inner");
  r.gathers = pointer<const void>(k, "gathers");
  r.label_index = pointer<const int64_t>(k, "label_index");
  r.tokens = field<int64_t>(k, "tokens");
  r.distinct = field<int64_t>(k, "distinct");
  r.offsets = pointer<const int64_t>(k, "offsets");
  r.samples = field<int64_t>(k, "samples");
  r.tilt = pointer<const double>(k, "tilt");
  r.label = pointer<const double>(k, "label");
  r.gram = pointer<double>(k, "gram");
  py::gil_scoped_release unlocked;
  kernels().head_reduce(r, float64);
}

py::dict build_info() {
  py::dict info;
  info["version"] = OASIS_VERSION;
  info["compiler"] = __VERSION__;
#if defined(_OPENMP)
  info["openmp"] = true;
#else
  info["openmp"] = false;
#endif
  info["isa_compiled"] = py::str(compiled_isas()).attr("split")(",");
  info["isa"] = kernels().name;
#if defined(OASIS_HAS_CUDA)
  info["cuda"] = true;
  info["cuda_architectures"] = OASIS_CUDA_ARCHITECTURES;
#else
  info["cuda"] = false;
  info["cuda_architectures"] = "";
#endif
  return info;
}

}  // namespace
}  // namespace oasis

#if defined(OASIS_HAS_CUDA)
#include "cuda_bindings.cpp"
#endif

PYBIND11_MODULE(_core, m) {
  m.doc() = "Compiled core of oasis. Takes raw addresses; call it through oasis.ops.";
  m.attr("MAX_EXACT") = kMaxExact;
  m.attr("STATISTICS") = int(kStatistics);
  m.attr("COUNTERS") = int(kCounters);
  m.def("gram", &oasis::gram);
  m.def("siren", &oasis::siren);
  m.def("mean_field_sum", &oasis::mean_field_sum);
  m.def("oris", &oasis::oris_step);
  m.def("oris_stop", &oasis::oris_stops);
  m.def("head_block", &oasis::head_block);
  m.def("head_rescale", &oasis::head_rescale);
  m.def("head_reduce", &oasis::head_reduce);
  m.def("uniform", [](uint64_t seed, uint64_t counter) { return uniform(seed, counter); });
  m.def("philox", [](uint64_t seed, uint64_t counter) {
    const Philox4 r = philox(seed, counter);
    return py::make_tuple(r.x[0], r.x[1], r.x[2], r.x[3]);
  });
  m.def("build_info", &oasis::build_info);
#if defined(OASIS_HAS_CUDA)
  oasis::bind_cuda(m);
#endif
  m.def("cuda_device_count", [] {
#if defined(OASIS_HAS_CUDA)
    return oasis::cuda_device_count();
#else
    return 0;
#endif
  });
}
