// Picks the kernels for this processor, once.
#include <cstdlib>
#include <cstring>

#include "cpu/kernels.h"

namespace oasis {

#define OASIS_DECLARE(isa)                                                           \
  namespace isa {                                                                    \
  bool gram(const StridedSamples&, bool, double*);                                   \
  int64_t siren(double*, double*, int64_t, Rule, double, double, double*, int64_t*); \
  void head_block(const HeadBlock&, bool);                                           \
  void head_rescale(void*, const double*, int64_t, bool);                            \
  void head_reduce(const HeadReduce&, bool);                                         \
  bool sketch(const StridedSamples&, const SketchPlan&, double*);                    \
  bool remembered(const Remembered&);                                                \
  constexpr Kernels table{#isa,         gram,        siren,  head_block,             \
                          head_rescale, head_reduce, sketch, remembered};            \
  }

OASIS_DECLARE(baseline)
#if defined(OASIS_HAS_avx512)
OASIS_DECLARE(avx2)
OASIS_DECLARE(avx512)
#endif

const char* compiled_isas() {
#if defined(OASIS_HAS_avx512)
  return "baseline,avx2,avx512";
#else
  return "baseline";
#endif
}

static const Kernels& choose() {
#if defined(OASIS_HAS_avx512)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  // OASIS_ISA caps the choice (tests, and comparing the code paths on one machine).
  const char* cap = std::getenv("OASIS_ISA");
  const bool any = cap == nullptr || *cap == '\0' || !std::strcmp(cap, "avx512");
  if (avx512 && any) return avx512::table;
  if (avx2 && (any || !std::strcmp(cap, "avx2"))) return avx2::table;
#endif
  return baseline::table;
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace oasis
