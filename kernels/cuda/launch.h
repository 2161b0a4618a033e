// The launchers' interface: plain pointers to device memory, sizes and a stream. Nothing is
// allocated, nothing waits for the device, so everything can be captured in a CUDA graph. Each
// returns null or what went wrong. `device` is where the memory and the stream live; the device
// that was current is so again afterwards.
#pragma once
#include <cstddef>
#include <cstdint>

#include "oasis/memory.h"
#include "oasis/oris.h"
#include "oasis/select.h"
#include "oasis/sketch.h"
#include "oasis/usable.h"

namespace oasis {
namespace cuda {

constexpr int kMaxOneLaunch = 16;  // samples that `select` takes
constexpr int kMaxExactSamples = 30;
constexpr int64_t kMaxRuleSamples = 4096;
constexpr int64_t kMaxSketchSamples = 65535;

// Gradients [samples, columns], contiguous along columns, rows `row_stride` elements apart.
// `gram` [samples, samples] is written, or added to.
struct Gram {
  const void* data;
  DType type;
  int64_t samples, columns, row_stride;
  bool add;
  double* gram;
  void* workspace;
  size_t workspace_bytes;
  int device;
};
const char* gram_workspace(const Gram&, size_t* bytes);
const char* gram(const Gram&, void* stream);

// Who of the candidates can be scored (oasis/usable.h); *wrong on the device is the code of what is
// wrong with the batch, 0 for nothing; where it is not, nobody is valid.
struct Candidates {
  Usable usable;
  int64_t* wrong;
  int device;
};
const char* usable(const Candidates&, void* stream);

// SIREN on gram [n, n] (float64). `capacity` bounds the number of valid samples where the rule is
// exact. `floor` is one float64 on the device. adjusted [n]; order [n], -1 after the last pick.
struct Siren {
  const double* gram;
  const bool* valid;
  const double* floor;
  int64_t n, capacity;
  Rule rule;
  double ridge;
  double* adjusted;
  int64_t* order;
  void* workspace;
  size_t workspace_bytes;
  int device;
};
const char* siren_workspace(const Siren&, size_t* bytes);
const char* siren(const Siren&, void* stream);

// One ORIS step (docs/method.md 3 and 4); the state is advanced in place on the device.
struct Oris {
  const double *informativeness, *adjusted;
  const bool* valid;
  int64_t n;
  OrisConfig config;
  double* statistics;
  int64_t* counters;
  double *relative, *probability;
  bool* mask;
  int device;
};
const char* oris(const Oris&, void* stream);

// All three in one launch, for n <= kMaxOneLaunch; `wrong` as of Candidates. Where the device has
// too little shared memory for it (`*fits` false) nothing was launched: call one after the other.
const char* select(const Select&, int64_t* wrong, int device, void* stream, bool* fits);

// Adds the sketches (oasis/sketch.h) of gradients laid out as for Gram to out [samples, dim].
struct Sketch {
  const void* data;
  DType type;
  int64_t samples, columns, row_stride;
  SketchPlan plan;
  double* out;
  void* workspace;
  size_t workspace_bytes;
  int device;
};
const char* sketch_workspace(const Sketch&, size_t* bytes);
const char* sketch(const Sketch&, void* stream);

// What the remembered samples leave (oasis/memory.h).
struct Memory {
  Remembered of;
  void* workspace;
  size_t workspace_bytes;
  int device;
};
const char* remembered_workspace(const Memory&, size_t* bytes);
const char* remembered(const Memory&, void* stream);

// The masked rows of sketch [n, width] into the ring memory [capacity, width]; `selected` counts
// them already.
struct Remember {
  const double* sketch;
  const bool* mask;
  const int64_t* selected;
  int64_t n, width, capacity;
  double* memory;
  int device;
};
const char* remember(const Remember&, void* stream);

}  // namespace cuda
}  // namespace oasis
