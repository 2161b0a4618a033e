#include "cpu/select.h"

#include <memory>
#include <vector>

#include "cpu/calls.h"
#include "oasis/oris.h"

namespace oasis {

Finding select(const Select& s, const double* scores) {
  const size_t n = size_t(s.n);
  std::vector<double> left(n * n);
  const std::unique_ptr<bool[]> valid(new bool[n]);
  const Finding found = usable({s.gram, s.given, scores, nullptr, s.n, 0, s.products, s.raises,
                                left.data(), s.informativeness, valid.get(), s.skipped});
  if (found.wrong != Wrong::nothing) return found;
  const double floor =
      s.stop ? oris_stop(s.informativeness, valid.get(), s.n, s.config, s.statistics, s.counters)
             : -HUGE_VAL;
  siren({left.data(), valid.get(), scores ? s.informativeness : nullptr, s.n, s.rule, s.ridge,
         floor, s.adjusted, s.order});
  *s.threshold = s.statistics[kThreshold];
  oris(s.informativeness, s.adjusted, valid.get(), s.n, s.config, s.statistics, s.counters,
       s.relative, s.probability, s.mask);
  return found;
}

}  // namespace oasis
