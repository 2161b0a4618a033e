// What callers name things, and what the names mean. An unknown one throws std::invalid_argument.
#pragma once
#include <stdexcept>
#include <string>

#include "cpu/kernels.h"
#include "oasis/oris.h"

namespace oasis {

template <typename E>
struct Named {
  const char* name;
  E value;
};
constexpr Named<DType> kDTypes[] = {{"float32", DType::float32},
                                    {"float64", DType::float64},
                                    {"bfloat16", DType::bfloat16},
                                    {"float16", DType::float16}};
constexpr Named<Rule> kRules[] = {{"exact", Rule::exact},
                                  {"mean_field", Rule::mean_field},
                                  {"pairwise", Rule::pairwise},
                                  {"residual", Rule::residual},
                                  {"none", Rule::none}};
constexpr Named<Scale> kScales[] = {{"sample", Scale::sample},
                                    {"batch", Scale::batch},
                                    {"raw", Scale::raw},
                                    {"within", Scale::within}};
constexpr Named<Draw> kDraws[] = {{"bernoulli", Draw::bernoulli},
                                  {"shared", Draw::shared},
                                  {"systematic", Draw::systematic},
                                  {"top", Draw::top}};
constexpr Named<Recursion> kRecursions[] = {{"equations", Recursion::equations},
                                            {"released", Recursion::released}};

template <typename E, size_t N>
E named(const Named<E> (&names)[N], const char* argument, const std::string& got) {
  std::string expected;
  for (const auto& known : names) {
    if (got == known.name) return known.value;
    expected += (expected.empty() ? "" : ", ") + std::string(known.name);
  }
  throw std::invalid_argument(std::string(argument) + ": got '" + got + "', expected one of " +
                              expected);
}
inline DType dtype_of(const std::string& name) { return named(kDTypes, "dtype", name); }
inline Rule rule_of(const std::string& name) { return named(kRules, "method", name); }
inline Scale scale_of(const std::string& name) { return named(kScales, "scale", name); }
inline Recursion recursion_of(const std::string& name) {
  return named(kRecursions, "recursion", name);
}
inline Draw draw_of(const std::string& name) { return named(kDraws, "draw", name); }

}  // namespace oasis
