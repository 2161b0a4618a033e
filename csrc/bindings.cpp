// Python bindings: addresses, sizes and strides in; nothing is allocated for the caller. The
// tensors behind the addresses are checked and kept alive by oasis/operators.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/calls.h"
#include "cpu/kernels.h"
#include "cpu/names.h"
#include "cpu/select.h"
#include "cpu/usable.h"
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

void gram(Address data, const std::string& dtype, const std::vector<int64_t>& sizes,
          const std::vector<int64_t>& strides, bool wide, Address out) {
  const StridedSamples samples =
      describe(at<const void>(data), named<DType>(dtype), sizes, strides);
  py::gil_scoped_release unlocked;
  if (!kernels().gram(samples, wide, at<double>(out))) throw std::bad_alloc();
}

// Adds the sketches of one parameter's gradients to out [N, dim].
void sketch(Address data, const std::string& dtype, const std::vector<int64_t>& sizes,
            const std::vector<int64_t>& strides, int64_t first, int64_t dim, uint64_t seed,
            bool exact, Address out) {
  const StridedSamples samples =
      describe(at<const void>(data), named<DType>(dtype), sizes, strides);
  py::gil_scoped_release unlocked;
  if (!kernels().sketch(samples, {first, dim, seed, exact}, at<double>(out)))
    throw std::bad_alloc();
}

py::tuple as_tuple(const Finding& f) { return py::make_tuple(int(f.wrong), f.i, f.j); }

py::tuple inner_products_at(Address gram, Address valid, int64_t n) {
  return as_tuple(inner_products(at<const double>(gram), at<const bool>(valid), n));
}

py::tuple usable_at(Address gram, Address given, Address scores, Address sketch, int64_t n,
                    int64_t width, bool products, bool raises, Address left,
                    Address informativeness, Address valid, Address skipped) {
  return as_tuple(usable({at<const double>(gram), at<const bool>(given), at<const double>(scores),
                          at<const double>(sketch), n, width, products, raises, at<double>(left),
                          at<double>(informativeness), at<bool>(valid), at<bool>(skipped)}));
}

int64_t siren_at(Address gram, Address valid, int64_t n, const std::string& method, double ridge,
                 double floor, Address adjusted, Address order, Address informativeness) {
  const Rule rule = named<Rule>(method);
  py::gil_scoped_release unlocked;
  return oasis::siren({at<const double>(gram), at<const bool>(valid),
                       at<const double>(informativeness), n, rule, ridge, floor,
                       at<double>(adjusted), at<int64_t>(order)});
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

int64_t oris_step(Address informativeness, Address adjusted, Address valid, int64_t n,
                  Address statistics, Address counters, const std::vector<double>& options,
                  Address relative, Address probability, Address mask) {
  return oris(at<const double>(informativeness), at<const double>(adjusted), at<const bool>(valid),
              n, oris_config(options), at<double>(statistics), at<int64_t>(counters),
              at<double>(relative), at<double>(probability), at<bool>(mask));
}

double oris_stop_at(Address informativeness, Address valid, int64_t n, Address statistics,
                    Address counters, const std::vector<double>& options) {
  return oris_stop(at<const double>(informativeness), at<const bool>(valid), n,
                   oris_config(options), at<const double>(statistics), at<const int64_t>(counters));
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
  b.entry_peak = pointer<double>(k, "entry_peak");
  b.maximum = pointer<double>(k, "maximum");
  b.label_logit = pointer<double>(k, "label_logit");
  b.sum = pointer<double>(k, "sum");
  b.weighted = pointer<double>(k, "weighted");
  b.squares = pointer<double>(k, "squares");
  b.factor = pointer<double>(k, "factor");
  b.sketch = pointer<void>(k, "sketch");
  b.sketch_rows = field<int64_t>(k, "sketch_rows");
  b.sketches = field<int64_t>(k, "sketches");
  b.buckets = pointer<const int32_t>(k, "buckets");
  b.signs = pointer<const void>(k, "signs");
  b.vocabulary = field<int64_t>(k, "vocabulary");
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
  r.coefficient = pointer<const double>(k, "coefficient");
  r.label = pointer<const double>(k, "label");
  r.gram = pointer<double>(k, "gram");
  py::gil_scoped_release unlocked;
  kernels().head_reduce(r, float64);
}

Remembered remembered_fields(const py::kwargs& k) {
  Remembered r{};
  r.gram = pointer<const double>(k, "gram");
  r.sketch = pointer<const double>(k, "sketch");
  r.valid = pointer<const bool>(k, "valid");
  r.memory = pointer<const double>(k, "memory");
  r.selected = pointer<const int64_t>(k, "counters") + kSelected;
  r.n = field<int64_t>(k, "n");
  r.capacity = field<int64_t>(k, "capacity");
  r.width = field<int64_t>(k, "width");
  r.ridge = field<double>(k, "ridge");
  r.left = pointer<double>(k, "left");
  r.scaled = pointer<double>(k, "scaled");
  return r;
}

// The masked rows of sketch [n, width] into the ring memory [capacity, width].
void remember_at(Address sketch, Address mask, int64_t n, int64_t width, Address counters,
                 Address memory, int64_t capacity) {
  remember(at<const double>(sketch), at<const bool>(mask), n, width,
           at<const int64_t>(counters)[kSelected], at<double>(memory), capacity);
}

void remembered(const py::kwargs& k) {
  const Remembered r = remembered_fields(k);
  py::gil_scoped_release unlocked;
  if (!kernels().remembered(r)) throw std::bad_alloc();
}

Select select_fields(const py::kwargs& k) {
  Select s{};
  s.gram = pointer<const double>(k, "gram");
  s.given = pointer<const bool>(k, "given");
  s.n = field<int64_t>(k, "n");
  s.products = field<bool>(k, "products");
  s.raises = field<bool>(k, "raises");
  s.rule = named<Rule>(field<std::string>(k, "method"));
  s.ridge = field<double>(k, "ridge");
  s.stop = field<bool>(k, "stop");
  s.config = oris_config(field<std::vector<double>>(k, "options"));
  s.statistics = pointer<double>(k, "statistics");
  s.counters = pointer<int64_t>(k, "counters");
  s.informativeness = pointer<double>(k, "informativeness");
  s.adjusted = pointer<double>(k, "adjusted");
  s.relative = pointer<double>(k, "relative");
  s.probability = pointer<double>(k, "probability");
  s.order = pointer<int64_t>(k, "order");
  s.mask = pointer<bool>(k, "mask");
  s.skipped = pointer<bool>(k, "skipped");
  s.threshold = pointer<double>(k, "threshold");
  return s;
}

py::tuple select_step(const py::kwargs& k) {
  const Select s = select_fields(k);
  const auto* scores = pointer<const double>(k, "scores");
  Finding found{};
  {
    py::gil_scoped_release unlocked;
    found = select(s, scores);
  }
  *pointer<int64_t>(k, "fault") = int64_t(found.wrong);
  return as_tuple(found);
}

// oasis/names.def for Python: names by what they are of, and the options as (name, kind).
py::dict names() {
  py::dict all;
  all["dtype"] = py::tuple(py::cast(Names<DType>::all()));
  all["rule"] = py::tuple(py::cast(Names<Rule>::all()));
  all["scale"] = py::tuple(py::cast(Names<Scale>::all()));
  all["draw"] = py::tuple(py::cast(Names<Draw>::all()));
  all["wrong"] = py::tuple(py::cast(Names<Wrong>::all()));
  all["recursion"] = py::tuple(py::cast(Names<Recursion>::all()));
#define OASIS_STRING(constant, name) #name,
  all["statistic"] = py::tuple(py::cast(std::vector<std::string>{OASIS_STATISTICS(OASIS_STRING)}));
  all["counter"] = py::tuple(py::cast(std::vector<std::string>{OASIS_COUNTERS(OASIS_STRING)}));
#undef OASIS_STRING
  py::list options;
#define OASIS_OPTION(type, name) options.append(py::make_tuple(#name, Packed<type>::kind));
  OASIS_ORIS_OPTIONS(OASIS_OPTION)
#undef OASIS_OPTION
  all["option"] = py::tuple(options);
  return all;
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
  m.doc() = "Compiled core of oasis. Takes raw addresses; call it through torch.ops.oasis.";
  m.attr("MAX_EXACT") = kMaxExact;
  m.attr("LARGEST") = kLargest;
  m.attr("PRODUCT_SLACK") = kProductSlack;
  m.attr("HEAD_PANEL") = kPanel;
  m.attr("NAMES") = oasis::names();
  m.def("gram", &oasis::gram);
  m.def("sketch", &oasis::sketch);
  m.def("remembered", &oasis::remembered);
  m.def("remember", &oasis::remember_at);
  m.def("inner_products", &oasis::inner_products_at);
  m.def("usable", &oasis::usable_at);
  m.def("select", &oasis::select_step);
  m.def("siren", &oasis::siren_at);
  m.def("mean_field_sum", &oasis::mean_field_sum);
  m.def("oris", &oasis::oris_step);
  m.def("oris_stop", &oasis::oris_stop_at);
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
