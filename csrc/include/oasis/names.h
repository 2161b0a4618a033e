// The enumerations and structures that oasis/names.def lists.
#pragma once
#include <cstdint>

#include "oasis/names.def"

namespace oasis {

#define OASIS_NAME(name) name,
enum class DType : int { OASIS_DTYPES(OASIS_NAME) };
enum class Rule : int { OASIS_RULES(OASIS_NAME) };
enum class Scale : int { OASIS_SCALES(OASIS_NAME) };
enum class Draw : int { OASIS_DRAWS(OASIS_NAME) };
enum class Recursion : int { OASIS_RECURSIONS(OASIS_NAME) };
enum class Wrong : int { OASIS_WRONGS(OASIS_NAME) };
#undef OASIS_NAME

#define OASIS_POSITION(constant, name) constant,
enum Statistic { OASIS_STATISTICS(OASIS_POSITION) kStatistics };
enum Counter { OASIS_COUNTERS(OASIS_POSITION) kCounters };
#undef OASIS_POSITION

#define OASIS_FIELD(type, name) type name;
struct OrisConfig {
  OASIS_ORIS_OPTIONS(OASIS_FIELD)
};
#undef OASIS_FIELD

}  // namespace oasis
