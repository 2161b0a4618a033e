// What callers name things (oasis/names.def), and what the names mean. An unknown one throws
// std::invalid_argument.
#pragma once
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "oasis/names.h"

namespace oasis {

// The names of an enumeration in the order of its values, and what arguments of its kind are
// called.
template <typename E>
struct Names;
#define OASIS_STRING(name) #name,
#define OASIS_NAMES(Enum, argument_name, LIST)                         \
  template <>                                                          \
  struct Names<Enum> {                                                 \
    static constexpr const char* argument = argument_name;             \
    static const std::vector<std::string>& all() {                     \
      static const std::vector<std::string> names{LIST(OASIS_STRING)}; \
      return names;                                                    \
    }                                                                  \
  };
OASIS_NAMES(DType, "dtype", OASIS_DTYPES)
OASIS_NAMES(Rule, "method", OASIS_RULES)
OASIS_NAMES(Scale, "scale", OASIS_SCALES)
OASIS_NAMES(Draw, "draw", OASIS_DRAWS)
OASIS_NAMES(Recursion, "recursion", OASIS_RECURSIONS)
OASIS_NAMES(Wrong, "wrong", OASIS_WRONGS)
#undef OASIS_NAMES
#undef OASIS_STRING

template <typename E>
std::invalid_argument unknown(const std::string& got) {
  std::string expected;
  for (const std::string& name : Names<E>::all()) expected += (expected.empty() ? "" : ", ") + name;
  return std::invalid_argument(std::string(Names<E>::argument) + ": got " + got +
                               ", expected one of " + expected);
}
template <typename E>
E named(const std::string& got) {
  const auto& names = Names<E>::all();
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == got) return static_cast<E>(i);
  throw unknown<E>("'" + got + "'");
}

// Options travel as float64, a name as its position.
template <typename T>
struct Packed {
  static constexpr const char* kind = Names<T>::argument;
  static T value(const char*, double x) {
    const auto& names = Names<T>::all();
    if (!(x >= 0 && x < double(names.size()) && x == std::floor(x)))
      throw unknown<T>(std::to_string(x));
    return static_cast<T>(int(x));
  }
};
template <>
struct Packed<double> {
  static constexpr const char* kind = "number";
  static double value(const char*, double x) { return x; }
};
template <>
struct Packed<int64_t> {
  static constexpr const char* kind = "count";
  static int64_t value(const char* name, double x) {
    if (!(x >= 0 && x <= 9007199254740992.0 && x == std::floor(x)))
      throw std::invalid_argument(std::string(name) + ": got " + std::to_string(x) +
                                  ", expected an integer in [0, 2^53]");
    return int64_t(x);
  }
};
inline OrisConfig oris_config(const std::vector<double>& packed) {
#define OASIS_COUNT(type, name) +1
  constexpr size_t count = 0 OASIS_ORIS_OPTIONS(OASIS_COUNT);
#undef OASIS_COUNT
  if (packed.size() != count)
    throw std::invalid_argument("options: got " + std::to_string(packed.size()) +
                                " numbers, expected " + std::to_string(count));
  OrisConfig config{};
  size_t i = 0;
#define OASIS_UNPACK(type, name) config.name = Packed<type>::value(#name, packed[i++]);
  OASIS_ORIS_OPTIONS(OASIS_UNPACK)
#undef OASIS_UNPACK
  return config;
}

}  // namespace oasis
