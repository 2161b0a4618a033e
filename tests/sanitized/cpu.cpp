// Serves the CPU kernels of csrc/ (tests/sanitized/serve.h), as csrc/bindings.cpp calls them.
#include <mutex>
#include <new>
#include <stdexcept>

#include "cpu/calls.h"
#include "cpu/kernels.h"
#include "cpu/names.h"
#include "cpu/select.h"
#include "sanitized/serve.h"

namespace allocation {

long left = -1, open = 0;
static std::mutex guard;  // kernels allocate in every thread

void* take(size_t alignment, size_t size) {
  const std::lock_guard<std::mutex> locked(guard);
  if (left >= 0 && left-- == 0) return nullptr;
  ++open;
  return std::aligned_alloc(alignment, size);
}
void give(void* memory) {
  const std::lock_guard<std::mutex> locked(guard);
  open -= memory != nullptr;
  std::free(memory);
}

}  // namespace allocation

namespace {

using namespace oasis;
using serving::Request;

// Integers: wide, sizes, strides. Buffers: the samples, the Gram matrix.
std::string gram(const std::string& dtype, const Request& r) {
  const auto sizes = r.integers.begin() + 1, strides = sizes + (r.integers.size() - 1) / 2;
  const StridedSamples samples = describe(r.buffer<void>(0), oasis::named<oasis::DType>(dtype),
                                          {sizes, strides}, {strides, r.integers.end()});
  if (!kernels().gram(samples, r.integers.at(0), r.buffer<double>(1))) throw std::bad_alloc();
  return "";
}

// Integers: first, dim, seed, exact, sizes, strides. Buffers: the samples, the sketches.
std::string sketch(const std::string& dtype, const Request& r) {
  const auto sizes = r.integers.begin() + 4, strides = sizes + (r.integers.size() - 4) / 2;
  const StridedSamples samples = describe(r.buffer<void>(0), oasis::named<oasis::DType>(dtype),
                                          {sizes, strides}, {strides, r.integers.end()});
  const SketchPlan plan{r.integers.at(0), r.integers.at(1), uint64_t(r.integers.at(2)),
                        r.integers.at(3) != 0};
  if (!kernels().sketch(samples, plan, r.buffer<double>(1))) throw std::bad_alloc();
  return "";
}

// Integers: n, width, capacity. Double: ridge. Buffers: gram, sketch, valid, memory, counters,
// left, scaled.
std::string remembered(const Request& r) {
  const Remembered m{r.buffer<double>(0),
                     r.buffer<double>(1),
                     r.buffer<bool>(2),
                     r.buffer<double>(3),
                     r.buffer<int64_t>(4) + kSelected,
                     r.integers.at(0),
                     r.integers.at(2),
                     r.integers.at(1),
                     r.doubles.at(0),
                     r.buffer<double>(5),
                     r.buffer<double>(6)};
  if (!kernels().remembered(m)) throw std::bad_alloc();
  return "";
}

// Integers: n, width, capacity. Buffers: sketch, mask, counters, memory.
std::string remember(const Request& r) {
  oasis::remember(r.buffer<double>(0), r.buffer<bool>(1), r.integers.at(0), r.integers.at(1),
                  r.buffer<int64_t>(2)[kSelected], r.buffer<double>(3), r.integers.at(2));
  return "";
}

// Integer: n. Doubles: ridge, floor. Buffers: gram, valid, adjusted, order, informativeness.
std::string siren(const std::string& rule, const Request& r) {
  SirenCall call{};
  call.n = r.integers.at(0);
  call.rule = oasis::named<oasis::Rule>(rule);
  call.ridge = r.doubles.at(0);
  call.floor = r.doubles.at(1);
  call.gram = r.buffer<double>(0);
  call.valid = r.buffer<bool>(1);
  call.adjusted = r.buffer<double>(2);
  call.order = r.buffer<int64_t>(3);
  call.informativeness = r.sizes.at(4) ? r.buffer<double>(4) : nullptr;
  oasis::siren(call);
  return "";
}

// Integer: n. Doubles: options. Buffers: informativeness, adjusted, valid, statistics, counters,
// relative, probability, mask.
std::string oris(const Request& r) {
  oasis::oris(r.buffer<double>(0), r.buffer<double>(1), r.buffer<bool>(2), r.integers.at(0),
              serving::oris_config(r, 0), r.buffer<double>(3), r.buffer<int64_t>(4),
              r.buffer<double>(5), r.buffer<double>(6), r.buffer<bool>(7));
  return "";
}

// Integers, doubles and buffers in the order of HeadBlock; no bias is an empty buffer.
std::string head_block(const Request& r) {
  HeadBlock b{};
  b.tokens = r.integers.at(1);
  b.columns = r.integers.at(2);
  b.column_stride = r.integers.at(3);
  b.first = r.integers.at(4);
  b.label_count = r.integers.at(5);
  b.label_first = r.integers.at(6);
  b.distinct = r.integers.at(7);
  b.scale = r.doubles.at(0);
  b.softcap = r.doubles.at(1);
  b.logits = r.buffer<void>(0);
  b.bias = r.sizes.at(1) ? r.buffer<void>(1) : nullptr;
  b.labels = r.buffer<int64_t>(2);
  b.label_columns = r.buffer<int64_t>(3);
  b.gathers = r.buffer<void>(4);
  double** const token[] = {&b.peak, &b.entry_peak, &b.maximum, &b.label_logit,
                            &b.sum,  &b.weighted,   &b.squares, &b.factor};
  size_t at = 5;
  for (double** field : token) *field = r.buffer<double>(at++);
  b.sketch_rows = r.integers.at(8);
  b.sketches = r.integers.at(9);
  b.vocabulary = r.integers.at(10);
  b.sketch = r.buffer<void>(at++);
  b.buckets = r.buffer<int32_t>(at++);
  b.signs = r.buffer<void>(at++);
  kernels().head_block(b, r.integers.at(0));
  return "";
}

// Integers: float64, tokens. Buffers: products, factor.
std::string head_rescale(const Request& r) {
  kernels().head_rescale(r.buffer<void>(0), r.buffer<double>(1), r.integers.at(1),
                         r.integers.at(0));
  return "";
}

// Integers: float64, tokens, distinct, samples. Buffers in the order of HeadReduce.
std::string head_reduce(const Request& r) {
  const HeadReduce reduce{r.buffer<void>(0),    r.buffer<void>(1),  r.buffer<void>(2),
                          r.buffer<int64_t>(3), r.integers.at(1),   r.integers.at(2),
                          r.buffer<int64_t>(4), r.integers.at(3),   r.buffer<double>(5),
                          r.buffer<double>(6),  r.buffer<double>(7)};
  kernels().head_reduce(reduce, r.integers.at(0));
  return "";
}

// Planted faults: does the net hold?
std::string fault(const Request& r) {
  volatile int64_t at = r.integers.at(1);
  double* buffer = r.buffer<double>(0);
  if (r.integers.at(0) == 0) buffer[at] = 1;
  if (r.integers.at(0) == 1) buffer[0] = double(int64_t(1) << at);
  return "";
}

// A name may be followed by a word: gram:float32, siren:exact.
// See `select_of`. Then what was found (code, i, j), and the scores, if there are any.
std::string select(const std::string& rule, const Request& r) {
  const Select s = serving::select_of(r, oasis::named<oasis::Rule>(rule));
  const Finding f = oasis::select(s, r.sizes.at(13) ? r.buffer<double>(13) : nullptr);
  int64_t* found = r.buffer<int64_t>(12);
  found[0] = int64_t(f.wrong), found[1] = f.i, found[2] = f.j;
  return "";
}

std::string call(const std::string& asked, const Request& r) {
  const std::string name = asked.substr(0, asked.find(':'));
  const std::string word = asked.substr(asked.find(':') + 1);
  if (name == "gram") return gram(word, r);
  if (name == "sketch") return sketch(word, r);
  if (name == "remembered") return remembered(r);
  if (name == "remember") return remember(r);
  if (name == "siren") return siren(word, r);
  if (name == "oris") return oris(r);
  if (name == "select") return select(word, r);
  if (name == "head_block") return head_block(r);
  if (name == "head_rescale") return head_rescale(r);
  if (name == "head_reduce") return head_reduce(r);
  if (name == "fault") return fault(r);
  if (name == "isa") return kernels().name;
  if (name == "fail") return allocation::left = r.integers.at(0), "";
  return "no such kernel";
}

std::string serve(const std::string& name, const Request& r) {
  std::string answer;
  try {
    answer = call(name, r);
  } catch (const std::bad_alloc&) {
    answer = "no memory";
  } catch (const std::invalid_argument& error) {
    answer = error.what();
  }
  return allocation::open ? "memory was not given back" : answer;
}

}  // namespace

int main() { return serving::run(serve); }
