// ORIS: relative informativeness, the draw, and the running statistics (docs/method.md 3 and 4).
// Host and device share this source: a step begins once per batch, judges every sample on its own
// (on a device by a thread each) and ends once per batch.
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

// What one batch is judged by; nothing has been written yet.
struct OrisStep {
  Moments after;           // the running statistics that this batch leaves
  double mean, deviation;  // z = (A - mean) / deviation
  double threshold, common;
  uint64_t seed, offset;
  int64_t count;  // valid samples
};

OASIS_HD inline void oris_begin(const double* informativeness, const double* adjusted,
                                const bool* valid, int64_t n, const OrisConfig& config,
                                const double* statistics, const int64_t* counters, OrisStep* step) {
  const Moments before{statistics[kMean], statistics[kVariance], statistics[kWithin]};
  const int64_t batches = counters[kBatches];
  double batch_mean, own_spread, spread;
  step->count = batch_moments(informativeness, valid, n, std::nan(""), &batch_mean, &own_spread);
  if (step->count == 0) return;
  batch_moments(informativeness, valid, n, batches ? before.mean : std::nan(""), &batch_mean,
                &spread);
  const Moments after = advance(before, batch_mean, spread, batches, config.beta);

  const Moments used = config.current ? after : before;
  double mean = used.mean, s = deviation(used, config.scale, step->count);
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
  step->after = after;
  step->mean = mean;
  step->deviation = s;
  step->threshold = statistics[kThreshold];
  step->seed = uint64_t(counters[kSeed]);
  step->offset = uint64_t(counters[kOffset]);
  step->common = uniform(step->seed, step->offset);
}

// Sample i alone. Systematic draws need the probabilities before it and are made by oris_end.
OASIS_HD inline void oris_judge(const OrisStep& step, Draw draw, bool valid, double adjusted,
                                int64_t i, double* relative, double* probability, bool* mask) {
  *relative = *probability = 0.0;
  *mask = false;
  if (!valid) return;
  *relative = step.deviation > 0 ? (adjusted - step.mean) / step.deviation : 0.0;
  *probability = 1.0 / (1.0 + std::exp(step.threshold - *relative));
  if (draw == Draw::bernoulli)
    *mask = *probability > uniform(step.seed, step.offset + uint64_t(i));
  else if (draw == Draw::shared)
    *mask = *probability > step.common;
}

// Draws what is left to draw, counts, steers. Returns the number selected.
OASIS_HD inline int64_t oris_end(const OrisStep& step, const bool* valid, int64_t n,
                                 const OrisConfig& config, const double* probability, bool* mask,
                                 double* statistics, int64_t* counters) {
  counters[kSkipped] += n - step.count;
  if (step.count == 0) return 0;
  double cumulated = step.common, expected = 0;
  int64_t selected = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!valid[i]) continue;
    if (config.draw == Draw::systematic) {
      mask[i] = std::floor(cumulated + probability[i]) > std::floor(cumulated);
      cumulated += probability[i];
    }
    expected += probability[i];
    selected += mask[i];
  }

  statistics[kMean] = step.after.mean;
  statistics[kVariance] = step.after.variance;
  statistics[kWithin] = step.after.within;
  counters[kBatches] += 1;
  counters[kCandidates] += step.count;
  counters[kSelected] += selected;
  counters[kOffset] += config.draw == Draw::bernoulli ? n : 1;
  if (config.gain > 0 && config.ratio < 1) {
    // PI control in velocity form, in units of batches: the expected surplus of this batch moves
    // the threshold (by 1/t at first, to find it quickly), and the surplus really accumulated over
    // the stream pulls it until it is repaid.
    const double unit = double(step.count) * config.ratio * (1 - config.ratio);
    const double surplus = (expected - config.ratio * double(step.count)) / unit;
    const double owed = double(counters[kSelected]) - config.ratio * double(counters[kCandidates]);
    const double bound = 1 / (1 - config.ratio) + 1;
    const double debt = std::fmax(-bound, std::fmin(bound, owed / unit));
    const double gain = std::fmax(config.gain, 1 / double(counters[kBatches]));
    statistics[kThreshold] = step.threshold + gain * surplus + config.integral_gain * debt;
  }
  return selected;
}

// Normalise, draw, count, steer. Returns the number selected. Invalid samples get relative and
// probability 0 and are never selected; with no valid sample only the skip counter moves.
OASIS_HD inline int64_t oris(const double* informativeness, const double* adjusted,
                             const bool* valid, int64_t n, const OrisConfig& config,
                             double* statistics, int64_t* counters, double* relative,
                             double* probability, bool* mask) {
  OrisStep step;
  oris_begin(informativeness, adjusted, valid, n, config, statistics, counters, &step);
  for (int64_t i = 0; i < n; ++i)
    oris_judge(step, config.draw, valid[i] && step.count > 0, adjusted[i], i, relative + i,
               probability + i, mask + i);
  return oris_end(step, valid, n, config, probability, mask, statistics, counters);
}

}  // namespace oasis
