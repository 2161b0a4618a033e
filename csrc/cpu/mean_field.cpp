// Mean-field SIREN for large N: O(N^3) where the exact rule doubles with every sample.
#include "oasis/mean_field.h"

#include <cstdlib>

#include "cpu/greedy.h"
#include "cpu/kernels.h"

namespace oasis {
namespace OASIS_ISA {

// The subset sums of `exact` with ||S_U||^2 replaced by its mean over the subsets of one size that
// hold u (docs/method.md 2.2). The means come from sums over H that a pick updates in O(m). One
// thread: 20 ms at N = 256, and 256 forks and joins would cost more where cores are shared.
int64_t mean_field(const double* gram, const double* score, int64_t n, double floor,
                   double* adjusted, int64_t* order) {
  double* row_sum = static_cast<double*>(malloc(size_t(n) * 3 * 8));
  MeanFieldTable* table = static_cast<MeanFieldTable*>(malloc(sizeof(MeanFieldTable)));
  if (!row_sum || !table) {
    free(row_sum);
    free(table);
    return -1;
  }
  double *norm = row_sum + n, *w = norm + n;
  for (int64_t i = 0; i < n; ++i) norm[i] = ::sqrt(gram[i * n + i]);
  // Over H: of I_v, K_vv, ||g_v||, and of K_vv' (v != v').
  double scores = 0, squares = 0, norms = 0, pairs = 0;
  table->start();
  const auto join = [&](int64_t a, int64_t m, const bool* picked) {
    row_sum[m] = 0;  // of K_uv over v in H \ {u}, u the m-th pick
    for (int64_t u = 0; u < m; ++u) {
      row_sum[u] += gram[order[u] * n + a];
      row_sum[m] += gram[order[u] * n + a];
    }
    scores += score[a];
    squares += gram[a * n + a];
    norms += norm[a];
    pairs += 2 * row_sum[m];
    if (m) table->advance();
    for (int64_t u = 0; u <= m; ++u) {
      MeanField f{};
      f.score = score[order[u]];
      f.square = gram[order[u] * n + order[u]];
      f.norm = norm[order[u]];
      if (m) {
        f.mean = (scores - f.score) / double(m);
        f.mean_norm = (norms - f.norm) / double(m);
        f.linear = (squares - f.square) / double(m) + 2 * row_sum[u] / double(m);
      }
      if (m > 1) f.quadratic = (pairs - 2 * row_sum[u]) / (double(m) * double(m - 1));
      mean_field_bound(f, int(m));
      w[u] = -table->sum(f);
    }
    for (int64_t i = 0; i < n; ++i) {
      if (picked[i]) continue;
      double overlap = 0;
      for (int64_t u = 0; u <= m; ++u) overlap += w[u] * gram[order[u] * n + i];
      adjusted[i] = score[i] + (norm[i] > 0 ? overlap / norm[i] : 0.0);
    }
  };
  const int64_t picks = greedy(score, n, floor, adjusted, order, join);
  free(row_sum);
  free(table);
  return picks;
}

}  // namespace OASIS_ISA
}  // namespace oasis
