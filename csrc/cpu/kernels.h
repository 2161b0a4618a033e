// The CPU kernels' interface. Each is compiled once per instruction set in a namespace of its own
// (no inline function may be shared between them: the linker would keep one copy for all).
#pragma once
#include <cstdint>

#include "oasis/memory.h"
#include "oasis/names.h"
#include "oasis/sketch.h"

namespace oasis {

constexpr int kMaxDims = 8;
constexpr int kPanel = 16;     // tokens whose sketches lie side by side; vectors are no wider
constexpr int kMaxExact = 30;  // subsets need 8 bytes x 2^(N-2): 2 GiB at 30

// N samples of any strided layout; sizes and strides (in elements) are those of one sample,
// innermost last, adjacent dimensions already merged.
struct StridedSamples {
  const void* data;
  DType dtype;
  int64_t samples, sample_stride;
  int dims;
  int64_t sizes[kMaxDims], strides[kMaxDims];
};

// How one block of logits [columns, tokens] becomes exponentials, and what is kept per token.
struct HeadBlock {
  void* logits;  // in: W h, out: E = exp(z - entry_peak) f, 0 in the label's column
  int64_t tokens, columns, column_stride;
  int64_t first;                     // vocabulary index of column 0
  const void* bias;                  // [columns] or null, same type as the logits
  double scale, softcap;             // softcap 0 = none
  const int64_t* labels;             // [tokens]
  const int64_t* label_columns;      // [label_count] columns of this block that are someone's label
  int64_t label_count, label_first;  // they are entries label_first... of the distinct labels
  void* gathers;                     // [tokens, distinct], E at every distinct label
  int64_t distinct;
  // Per token, updated in place: off-label peaks of z and of log(exp(z) f) used (the same without a
  // soft cap), true off-label maximum and label's logit before the cap, sums of e = exp(z - peak),
  // of e (peak - z) and of e^2, and the factor by which earlier products must shrink.
  double *peak, *entry_peak, *maximum, *label_logit, *sum, *weighted, *squares, *factor;
  // Count sketches of E: entry v goes with signs[k, v] to row buckets[k, v], k < sketches.
  void* sketch;  // [panels, sketch_rows, kPanel], relative to the entry_peak
  int64_t sketch_rows, sketches;
  const int32_t* buckets;  // [sketches, vocabulary]
  const void* signs;       // [sketches, vocabulary]
  int64_t vocabulary;
};

struct HeadReduce {
  const void* products;        // [tokens, tokens] sums of E E^T, lower triangle
  const void* inner;           // [tokens, tokens] h h^T, lower triangle
  const void* gathers;         // [tokens, distinct]
  const int64_t* label_index;  // [tokens] position of the label among the distinct ones
  int64_t tokens, distinct;
  const int64_t* offsets;  // [samples + 1] tokens of sample i: offsets[i] to offsets[i + 1]
  int64_t samples;
  const double* coefficient;  // [tokens] c_t x chain scale x exp(entry_peak - lse)
  const double* label;        // [tokens] c_t x chain scale x q_t f_t[y_t]
  double* gram;               // [samples, samples]
};

struct Kernels {
  const char* name;
  // Adds the Gram matrix to out [N, N] (float64); `wide` multiplies in float64 whatever the type.
  // False where memory for it is lacking; out is then as it was.
  bool (*gram)(const StridedSamples&, bool wide, double* out);
  // score [n] is the informativeness, the diagonal of gram unless another measure takes its place
  // (Rule::residual knows the diagonal alone); both are overwritten. order receives the picks
  // and adjusted their scores; returns how many were made (all, or those above `floor`), or -1
  // where memory for it is lacking. n >= 1, and n <= kMaxExact where the rule is exact.
  int64_t (*siren)(double* gram, double* score, int64_t n, Rule, double ridge, double floor,
                   double* adjusted, int64_t* order);
  void (*head_block)(const HeadBlock&, bool float64);
  void (*head_rescale)(void* products, const double* factor, int64_t tokens, bool float64);
  void (*head_reduce)(const HeadReduce&, bool float64);
  // Adds the samples' sketches to out [N, dim]. False where memory for it is lacking.
  bool (*sketch)(const StridedSamples&, const SketchPlan&, double* out);
  // False where memory for it is lacking.
  bool (*remembered)(const Remembered&);
};

const Kernels& kernels();     // the best that this processor runs
const char* compiled_isas();  // comma separated

}  // namespace oasis
