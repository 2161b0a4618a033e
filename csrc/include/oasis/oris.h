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
enum class Draw { bernoulli, shared, systematic, top };

struct OrisConfig {
  double ratio;  // target share of samples to select, (0, 1]
  double beta;   // weight of the newest batch in the running statistics
  Scale scale;   // what divides A - mean
  Draw draw;
  int64_t warmup;      // batches normalised by their own statistics
  bool current;        // normalise with the statistics after this batch (preset "released")
  double gain;         // of the threshold steering; 0 = fixed threshold
  double slack;        // share of the budget that may stay unspent; 0 = neither cap nor floor
  double temperature;  // of the draw: how many deviations its sigmoid is wide
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

// The budget of a stream, in samples (docs/method.md 4.1).
struct Budget {
  double due;    // ratio x candidates: the cap on what has been selected
  double unit;   // share of a mean batch, of 16 candidates at least
  double width;  // how far below the cap the stream may be; not less than the 2 samples that keep
                 // a whole number between floor and cap
};

OASIS_HD inline Budget budget_of(const OrisConfig& config, int64_t candidates, int64_t batches) {
  const double due = config.ratio * double(candidates);
  const double unit = config.ratio * std::fmax(double(candidates) / double(batches), 16.0);
  const double seen = due / unit;
  // A short stream may spend the slack of a longer one, or informative batches would find nothing
  // to draw on: of 1,250 batches from the 193rd on, 3 % of the budget after 200.
  const double lent = std::fmin(90 * std::sqrt(seen), 1250.0);
  return {due, unit, std::fmax(2.0, config.slack * unit * std::fmax(seen, lent))};
}

OASIS_HD inline int64_t clamp(double x, int64_t low, int64_t high) {  // NaN: low
  return !(x > double(low)) ? low : x > double(high) ? high : int64_t(x);
}

// What one batch is judged by; nothing has been written yet.
struct OrisStep {
  Moments after;           // the running statistics that this batch leaves
  double mean, deviation;  // z = (A - mean) / deviation
  double threshold, temperature, common;
  uint64_t seed, offset;
  int64_t count;        // valid samples
  int64_t drawn, keep;  // samples drawn, and how many the budget lets stand
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
  step->temperature = config.temperature;
  step->seed = uint64_t(counters[kSeed]);
  step->offset = uint64_t(counters[kOffset]);
  step->common = uniform(step->seed, step->offset);
}

OASIS_HD inline double oris_probability(const OrisStep& step, double relative) {
  return 1.0 / (1.0 + std::exp((step.threshold - relative) / step.temperature));
}

// Sample i alone. Draws that need the other probabilities too are made by oris_end.
OASIS_HD inline void oris_judge(const OrisStep& step, Draw draw, bool valid, double adjusted,
                                int64_t i, double* relative, double* probability, bool* mask) {
  *relative = *probability = 0.0;
  *mask = false;
  if (!valid) return;
  *relative = step.deviation > 0 ? (adjusted - step.mean) / step.deviation : 0.0;
  *probability = oris_probability(step, *relative);
  if (draw == Draw::bernoulli)
    *mask = *probability > uniform(step.seed, step.offset + uint64_t(i));
  else if (draw == Draw::shared)
    *mask = *probability > step.common;
}

// Draws what is left to draw, counts, steers. Where oris_ranks says so the mask still has to be
// brought to step->keep samples (oris_key and oris_rank).
OASIS_HD inline void oris_end(OrisStep* step, const bool* valid, int64_t n,
                              const OrisConfig& config, const double* probability, bool* mask,
                              double* statistics, int64_t* counters) {
  counters[kSkipped] += n - step->count;
  step->drawn = step->keep = 0;
  if (step->count == 0) return;
  double cumulated = step->common, expected = 0;
  int64_t drawn = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!valid[i]) continue;
    if (config.draw == Draw::systematic) {
      mask[i] = std::floor(cumulated + probability[i]) > std::floor(cumulated);
      cumulated += probability[i];
    }
    expected += probability[i];
    drawn += mask[i];
  }
  if (config.draw == Draw::top) drawn = clamp(std::floor(step->common + expected), 0, step->count);

  statistics[kMean] = step->after.mean;
  statistics[kVariance] = step->after.variance;
  statistics[kWithin] = step->after.within;
  counters[kBatches] += 1;
  counters[kCandidates] += step->count;
  counters[kOffset] += config.draw == Draw::bernoulli ? n : 1;

  const Budget budget = budget_of(config, counters[kCandidates], counters[kBatches]);
  const double before = double(counters[kSelected]);
  int64_t keep = drawn;
  if (config.slack > 0) {
    const int64_t most = clamp(std::floor(budget.due) - before, 0, step->count);
    const int64_t least = clamp(std::ceil(budget.due - budget.width) - before, 0, most);
    keep = clamp(double(drawn), least, most);
  }
  counters[kSelected] += keep;
  step->drawn = drawn;
  step->keep = keep;
  if (config.gain > 0 && config.ratio < 1) {
    // As slow as the width allows, for whatever the threshold follows it takes from informative
    // batches. `firm` holds the random walk of the draws (variance `noise` a batch) inside the
    // width, `slow` finds the threshold by what was expected of it, also where the cap or the floor
    // decides, and the last term brings the stream to a little above the middle.
    const double noise = budget.unit * (1 - config.ratio);
    const double firm = std::fmin(6 * noise / (budget.width * budget.width), 0.3);
    const double slow = config.gain * budget.unit / budget.width;
    const double share = config.ratio * double(step->count);
    const double short_by = budget.due - double(counters[kSelected]);
    const double owed = 0.45 * budget.width - short_by;
    statistics[kThreshold] =
        step->threshold + (firm * (double(keep) - share) + slow * (expected - share) +
                           (firm + slow) * (firm + slow) / 4 * owed) /
                              noise;
  }
}

OASIS_HD inline bool oris_ranks(const OrisStep& step, Draw draw) {
  return step.keep != step.drawn || draw == Draw::top;
}

// By what samples are dropped or added: the threshold at which sample i would just be drawn. The
// budget thus raises or lowers the threshold of this batch under the same random numbers.
OASIS_HD inline double oris_key(const OrisStep& step, Draw draw, bool drawn, double relative,
                                int64_t i) {
  if (draw == Draw::top) return relative;
  const bool dropping = step.keep < step.drawn;
  if (drawn != dropping) return dropping ? -HUGE_VAL : HUGE_VAL;  // settled
  if (draw != Draw::bernoulli) return relative;
  const double r = uniform(step.seed, step.offset + uint64_t(i));
  const double key = relative - step.temperature * std::log(r / (1 - r));
  return key == key ? key : -HUGE_VAL;
}

// How many samples go before sample i; of equal ones the first.
OASIS_HD inline int64_t oris_rank(const double* key, const bool* valid, int64_t n, int64_t i) {
  int64_t rank = 0;
  for (int64_t j = 0; j < n; ++j)
    rank += valid[j] && (key[j] > key[i] || (key[j] == key[i] && j < i));
  return rank;
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
  oris_end(&step, valid, n, config, probability, mask, statistics, counters);
  if (!oris_ranks(step, config.draw)) return step.keep;
  // The keys lie where the probabilities do, for a moment.
  for (int64_t i = 0; i < n; ++i)
    probability[i] = oris_key(step, config.draw, mask[i], relative[i], i);
  for (int64_t i = 0; i < n; ++i)
    mask[i] = valid[i] && oris_rank(probability, valid, n, i) < step.keep;
  for (int64_t i = 0; i < n; ++i)
    probability[i] = valid[i] ? oris_probability(step, relative[i]) : 0.0;
  return step.keep;
}

}  // namespace oasis
