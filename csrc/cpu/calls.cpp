#include "cpu/calls.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <stdexcept>
#include <string>

namespace oasis {

StridedSamples describe(const void* data, DType dtype, const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides) {
  StridedSamples s{};
  s.data = data;
  s.dtype = dtype;
  s.samples = sizes.at(0);
  s.sample_stride = strides.at(0);
  for (size_t d = 1; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    if (s.dims && s.strides[s.dims - 1] == sizes[d] * strides.at(d)) {
      s.sizes[s.dims - 1] *= sizes[d];
      s.strides[s.dims - 1] = strides[d];
      continue;
    }
    if (s.dims == kMaxDims)
      throw std::invalid_argument("grads: more than 8 separately strided dimensions");
    s.sizes[s.dims] = sizes[d];
    s.strides[s.dims++] = strides.at(d);
  }
  if (s.dims == 0) s.sizes[0] = s.strides[0] = 1, s.dims = 1;
  return s;
}

// The Gram matrix of the same directions with other squared norms; 0 stays 0.
static void with_diagonal(double* gram, const double* diagonal, size_t n) {
  std::vector<double> factor(n);
  for (size_t i = 0; i < n; ++i) {
    const double norm = std::sqrt(gram[i * n + i]);
    factor[i] = norm > 0 ? std::sqrt(diagonal[i]) / norm : 0;
  }
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      gram[i * n + j] = i == j ? diagonal[i] : gram[i * n + j] * factor[j] * factor[i];
}

int64_t siren(const SirenCall& call) {
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < call.n; ++i) {
    call.adjusted[i] = 0, call.order[i] = -1;
    if (call.valid[i]) kept.push_back(i);
  }
  const size_t m = kept.size();
  if (m == 0) return 0;
  if (call.rule == Rule::exact && m > size_t(kMaxExact))
    throw std::invalid_argument("method: 'exact' takes at most " + std::to_string(kMaxExact) +
                                " valid samples, got " + std::to_string(m));
  std::vector<double> gram(m * m), score(m), adjusted(m);
  std::vector<int64_t> picks(m);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < m; ++j) gram[i * m + j] = call.gram[kept[i] * call.n + kept[j]];
  for (size_t i = 0; i < m; ++i)
    score[i] = call.informativeness ? call.informativeness[kept[i]] : gram[i * m + i];
  if (call.informativeness && call.rule == Rule::residual)
    with_diagonal(gram.data(), score.data(), m);
  const int64_t made = kernels().siren(gram.data(), score.data(), int64_t(m), call.rule, call.ridge,
                                       call.floor, adjusted.data(), picks.data());
  if (made < 0) throw std::bad_alloc();
  // Stopped early: what was not picked keeps its raw score.
  for (int64_t i : kept)
    call.adjusted[i] = call.informativeness ? call.informativeness[i] : call.gram[i * call.n + i];
  for (int64_t i = 0; i < made; ++i) {
    const size_t pick = size_t(picks[size_t(i)]);
    call.order[i] = kept[pick];
    call.adjusted[kept[pick]] = adjusted[pick];
  }
  return made;
}

void remember(const double* sketch, const bool* mask, int64_t n, int64_t width, int64_t selected,
              double* memory, int64_t capacity) {
  int64_t count = 0, k = 0;
  for (int64_t i = 0; i < n; ++i) count += mask[i];
  for (int64_t i = 0; i < n; ++i) {
    if (!mask[i]) continue;
    const int64_t slot = memory_slot(selected, count, k++, capacity);
    if (slot >= 0) std::copy_n(sketch + i * width, width, memory + slot * width);
  }
}

}  // namespace oasis
