// ORIS: relative informativeness, the draw, and the running statistics (docs/method.md 3 and 4).
// One thread's worth of work for a batch; host and device share this source.
#pragma once
#include <cmath>
#include <cstdint>

#include "oasis/philox.h"

namespace oasis {

// Layout of the two state buffers of a Selector. Python reads them by these positions.
enum Statistic { kMean, kVariance, kWithin, kThreshold, kStatistics };
enum Counter { kBatches, kCandidates, kSelected, kSkipped, kSeed, kOffset, kCounters };

enum class Scale { sample, batch, raw, within };
enum class Draw { bernoulli, shared, systematic };

struct OrisConfig {
  double ratio;  // target share of samples to select, (0, 1]
  double beta;   // weight of the newest batch in the running statistics
  Scale scale;   // what divides A - mean
  Draw draw;
  int64_t warmup;        // batches normalised by their own statistics
  bool current;          // normalise with the statistics after this batch (preset "released")
  double gain;           // proportional gain of the threshold steering; 0 = fixed threshold
  double integral_gain;  // gain on the accumulated surplus
};

struct Moments {
  double mean, variance, within;
};

// Mean and population variance of the raw informativeness over the valid samples.
OASIS_HD inline int64_t batch_moments(const double* informativeness, const bool* valid, int64_t n,
                                      double centre, double* mean, double* spread) {
  int64_t count = 0;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i)
    if (valid[i]) ++count, sum += informativeness[i];
  *mean = count ? sum / double(count) : 0.0;
  const double about = centre == centre ? centre : *mean;  // NaN: about the batch's own mean
  for (int64_t i = 0; i < n; ++i)
    if (valid[i]) squares += (informativeness[i] - about) * (informativeness[i] - about);
  *spread = count ? squares / double(count) : 0.0;
  return count;
}

// Exponential moving mean and variance; the first batch starts them at (its mean, 0).
OASIS_HD inline Moments advance(const Moments& m, double batch_mean, double spread_about_mean,
                                int64_t batches, double beta) {
  if (batches == 0) return {batch_mean, 0.0, spread_about_mean};
  const double step = batch_mean - m.mean;
  return {m.mean + beta * step, beta * step * step + (1 - beta) * m.variance,
          beta * spread_about_mean + (1 - beta) * m.within};
}

OASIS_HD inline double deviation(const Moments& m, Scale scale, int64_t n) {
  switch (scale) {
    case Scale::sample:
      return std::sqrt(double(n) * m.variance);
    case Scale::batch:
      return std::sqrt(m.variance);
    case Scale::raw:
      return m.variance;
    default:
      return std::sqrt(m.within);
  }
}

// Normalise, draw, count, steer. Returns the number selected. Invalid samples get relative and
// probability 0 and are never selected; with no valid sample only the skip counter moves.
OASIS_HD inline int64_t oris(const double* informativeness, const double* adjusted,
                             const bool* valid, int64_t n, const OrisConfig& config,
                             double* statistics, int64_t* counters, double* relative,
                             double* probability, bool* mask) {
  const Moments before{statistics[kMean], statistics[kVariance], statistics[kWithin]};
  const int64_t batches = counters[kBatches];
  double batch_mean, own_spread, spread;
  const int64_t count =
      batch_moments(informativeness, valid, n, std::nan(""), &batch_mean, &own_spread);
  for (int64_t i = 0; i < n; ++i) relative[i] = probability[i] = 0.0, mask[i] = false;
  counters[kSkipped] += n - count;
  if (count == 0) return 0;
  batch_moments(informativeness, valid, n, batches ? before.mean : std::nan(""), &batch_mean,
                &spread);
  const Moments after = advance(before, batch_mean, spread, batches, config.beta);

  const Moments& used = config.current ? after : before;
  double mean = used.mean, s = deviation(used, config.scale, count);
  if (batches < config.warmup || batches == 0 || !(s > 0)) {
    mean = batch_mean;
    s = std::sqrt(own_spread);
  }
  // Equal scores leave rounding noise for a deviation, and noise must not decide who is picked.
  // Redundancy still may: then the adjusted scores' own deviation is the unit.
  const double floor = 1e-6 * std::fabs(mean);
  if (config.scale != Scale::raw && s < floor) {
    double adjusted_mean, adjusted_spread;
    batch_moments(adjusted, valid, n, mean, &adjusted_mean, &adjusted_spread);
    s = std::fmax(floor, std::sqrt(adjusted_spread));
  }

  const uint64_t seed = uint64_t(counters[kSeed]), offset = uint64_t(counters[kOffset]);
  const double threshold = statistics[kThreshold];
  const double common = uniform(seed, offset);
  double cumulated = common;
  double expected = 0;
  int64_t selected = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!valid[i]) continue;
    const double gap = adjusted[i] - mean;
    relative[i] = s > 0 ? gap / s : 0.0;
    probability[i] = 1.0 / (1.0 + std::exp(threshold - relative[i]));
    switch (config.draw) {
      case Draw::bernoulli:
        mask[i] = probability[i] > uniform(seed, offset + uint64_t(i));
        break;
      case Draw::shared:
        mask[i] = probability[i] > common;
        break;
      case Draw::systematic:
        mask[i] = std::floor(cumulated + probability[i]) > std::floor(cumulated);
        cumulated += probability[i];
        break;
    }
    expected += probability[i];
    selected += mask[i];
  }

  statistics[kMean] = after.mean;
  statistics[kVariance] = after.variance;
  statistics[kWithin] = after.within;
  counters[kBatches] += 1;
  counters[kCandidates] += count;
  counters[kSelected] += selected;
  counters[kOffset] += config.draw == Draw::bernoulli ? n : 1;
  if (config.gain > 0 && config.ratio < 1) {
    // PI control in velocity form, in units of batches: the expected surplus of this batch moves
    // the threshold (by 1/t at first, to find it quickly), and the surplus really accumulated over
    // the stream pulls it until it is repaid.
    const double unit = double(count) * config.ratio * (1 - config.ratio);
    const double surplus = (expected - config.ratio * double(count)) / unit;
    const double owed = double(counters[kSelected]) - config.ratio * double(counters[kCandidates]);
    const double bound = 1 / (1 - config.ratio) + 1;
    const double debt = std::fmax(-bound, std::fmin(bound, owed / unit));
    const double gain = std::fmax(config.gain, 1 / double(counters[kBatches]));
    statistics[kThreshold] = threshold + gain * surplus + config.integral_gain * debt;
  }
  return selected;
}

}  // namespace oasis
