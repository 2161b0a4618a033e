// ORIS: relative informativeness, the draw, and the running statistics (docs/method.md 3 and 4).
// Host and device share this source: a step begins once per batch, judges every sample on its own
// (on a device by a thread each) and ends once per batch.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "oasis/names.h"
#include "oasis/numbers.h"
#include "oasis/philox.h"

namespace oasis {

struct Moments {
  double mean, variance, within;
};

// A mean square, times the square of a unit: the deviations of tiny scores have a square that is
// no float64.
struct Spread {
  double square, unit;
  OASIS_HD double variance() const { return square / unit / unit; }
  OASIS_HD double deviation() const { return std::sqrt(square) / unit; }
};

OASIS_HD inline double largest_size(const double* score, const bool* valid, int64_t n) {
  double largest = 0;
  for (int64_t i = 0; i < n; ++i)
    if (valid[i]) largest = std::fmax(largest, std::fabs(score[i]));
  return largest;
}

// Of the valid samples, up to `largest` in size, about `centre`; `freedom` divides the sum.
OASIS_HD inline Spread spread_about(const double* score, const bool* valid, int64_t n,
                                    double centre, double largest, int64_t freedom) {
  const double unit = near_one(std::fmax(largest, std::fabs(centre)));
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!valid[i]) continue;
    const double step = (score[i] - centre) * unit;
    sum += step * step;
  }
  return {sum / double(freedom), unit};
}

// A batch's own count, mean and deviation: of one sample 0, as nothing else is defined.
struct Own {
  int64_t count;
  double mean, largest;
  Spread spread;
};

OASIS_HD inline Own own_moments(const double* informativeness, const bool* valid, int64_t n,
                                Recursion recursion) {
  Own own{};
  for (int64_t i = 0; i < n; ++i)
    if (valid[i]) ++own.count, own.mean += informativeness[i];
  if (own.count == 0) return own;
  own.mean /= double(own.count);
  own.largest = largest_size(informativeness, valid, n);
  const bool unbiased = recursion == Recursion::released && own.count > 1;
  own.spread = spread_about(informativeness, valid, n, own.mean, own.largest, own.count - unbiased);
  return own;
}

// Where a stream stands before a batch. `cold`: the batch is judged by its own statistics.
struct Position {
  int64_t batches, candidates;
  bool cold;
};

OASIS_HD inline Position position(const int64_t* counters, const OrisConfig& config) {
  const int64_t batches = counters[kBatches], candidates = counters[kCandidates];
  return {batches, candidates, batches == 0 || candidates < config.warmup};
}

// The running statistics after a batch, whose mean square about the running mean is `about_mean`.
// By the equations the first batch starts them at (its mean, 0). The authors' code starts them with
// the batch that completes the warm-up, at its mean and variance, and lets the variance step about
// the mean as it is after the batch.
OASIS_HD inline Moments advance(const Moments& m, const Own& own, double about_mean,
                                const Position& at, const OrisConfig& config) {
  const double beta = config.beta, step = own.mean - m.mean;
  double left = step;  // of the batch's mean from the running one
  if (config.recursion == Recursion::released) {
    if (at.candidates + own.count < config.warmup) return m;
    if (at.cold) return {own.mean, own.spread.variance(), own.spread.variance()};
    left = (1 - beta) * step;
  } else if (at.batches == 0) {
    return {own.mean, 0.0, own.spread.variance()};
  }
  return {m.mean + beta * step, beta * left * left + (1 - beta) * m.variance,
          beta * about_mean + (1 - beta) * m.within};
}

// 0 where the variance has lost digits to underflow.
OASIS_HD inline double deviation(const Moments& m, Scale scale, int64_t n) {
  const double variance = scale == Scale::within ? m.within : m.variance;
  if (!(variance >= DBL_MIN)) return 0;
  if (scale == Scale::raw) return variance;
  return std::sqrt(scale == Scale::sample ? double(n) * variance : variance);
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
  const Position at = position(counters, config);
  const Own own = own_moments(informativeness, valid, n, config.recursion);
  step->count = own.count;
  if (own.count == 0) return;
  const Spread about = spread_about(informativeness, valid, n, before.mean, own.largest, own.count);

  double mean = before.mean, s = deviation(before, config.scale, own.count);
  // z must be finite, also where `raw` divides by next to nothing.
  if (config.scale == Scale::raw && s > 0 &&
      !((largest_size(adjusted, valid, n) + std::fabs(mean)) / s < HUGE_VAL))
    s = 0;
  if (at.cold || !(s > 0)) {
    mean = own.mean;
    s = own.spread.deviation();
  }
  // Equal scores leave rounding noise for a deviation, and noise must not decide who is picked.
  // Redundancy still may: then the adjusted scores' own deviation is the unit.
  const double floor = 1e-6 * std::fabs(mean);
  if (config.scale != Scale::raw && s < floor)
    s = std::fmax(
        floor, spread_about(adjusted, valid, n, mean, largest_size(adjusted, valid, n), own.count)
                   .deviation());
  step->after = advance(before, own, about.variance(), at, config);
  step->mean = mean;
  step->deviation = s;
  step->threshold = statistics[kThreshold];
  step->temperature = config.temperature;
  step->seed = uint64_t(counters[kSeed]);
  step->offset = uint64_t(counters[kOffset]);
  step->common = uniform(step->seed, step->offset);
}

OASIS_HD inline double oris_probability(const OrisStep& step, double relative) {
  if (!(step.threshold > -HUGE_VAL)) return 1.0;  // ratio 1
  return 1.0 / (1.0 + std::exp((step.threshold - relative) / step.temperature));
}

// The score at which z is the threshold: where preset "released" stops SIREN. The batch is judged
// by its raw scores, the adjusted ones being yet to come.
OASIS_HD inline double oris_stop(const double* informativeness, const bool* valid, int64_t n,
                                 const OrisConfig& config, const double* statistics,
                                 const int64_t* counters) {
  OrisStep step;
  oris_begin(informativeness, informativeness, valid, n, config, statistics, counters, &step);
  if (step.count == 0 || !(step.threshold > -HUGE_VAL)) return -HUGE_VAL;
  if (!(step.deviation > 0)) return step.threshold < 0 ? -HUGE_VAL : HUGE_VAL;  // every z is 0
  return step.mean + step.threshold * step.deviation;
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
  const int64_t most = clamp(std::floor(budget.due) - before, 0, step->count);
  if (config.draw == Draw::even) drawn = most;
  int64_t keep = drawn;
  if (config.slack > 0) {
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

// Draws of which only the number is drawn; which samples, their z say.
OASIS_HD inline bool by_rank(Draw draw) { return draw == Draw::top || draw == Draw::even; }

OASIS_HD inline bool oris_ranks(const OrisStep& step, Draw draw) {
  return step.keep != step.drawn || by_rank(draw);
}

// By what samples are dropped or added: the threshold at which sample i would just be drawn. The
// budget thus raises or lowers the threshold of this batch under the same random numbers.
OASIS_HD inline double oris_key(const OrisStep& step, Draw draw, bool drawn, double relative,
                                int64_t i) {
  if (by_rank(draw)) return relative;
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
