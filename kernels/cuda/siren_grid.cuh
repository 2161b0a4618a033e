// Exact SIREN beyond one block's shared memory: the subsets of a pick spread over a grid.
//
// The state lives in a workspace in global memory. One block makes the first kPrefix picks; then,
// for every further pick, `extend` visits all subsets of H and writes one record of sums per block,
// and `finish`, one block, adds the records in a fixed order, updates the scores and picks. What
// is launched depends on sizes alone; a batch that stopped early makes the rest return at once.
#pragma once
#include "siren.cuh"

namespace oasis {

constexpr int kMaxGridExact = 30;  // 8 bytes x 2^(N-2): 2 GiB
constexpr int kPrefix = 12;        // picks joined by the first block
// A subset's bits, from the lowest: thread, unrolled loop, outer loop, block.
constexpr int kGridThreads = 256, kGridThreadBits = 8, kInnerBits = 4, kMaxOuterBits = 5,
              kMaxBlockBits = 11;
constexpr int kFinishThreads = 1024;  // a warp for every pick
constexpr int kInner = 1 << kInnerBits;
constexpr int kRecord = 1 + kGridThreadBits + kInnerBits + kMaxOuterBits;  // total, then a bit each
static_assert(kPrefix == kGridThreadBits + kInnerBits, "the first grid pick has that many bits");
static_assert(kMaxGridExact - 2 <= kPrefix + kMaxOuterBits + kMaxBlockBits, "bits of a subset");

// How many of the bits beyond the inner ones become blocks: about 8 blocks per processor, the rest
// is looped over.
inline int block_bits(int m, int processors) {
  const int free = m - kPrefix, least = free - kMaxOuterBits;
  int bits = 0;
  while (bits < free && bits < kMaxBlockBits && (bits < least || 1 << bits < 8 * processors))
    ++bits;
  return bits;
}

struct GridWorkspace {
  Greedy greedy;
  double* squared_norm;  // [2^(capacity - 2)]
  double* records;       // [blocks, kRecord]
  __host__ __device__ GridWorkspace(Carve& carve, int64_t capacity)
      : greedy(carve, capacity),
        squared_norm(carve.take<double>(int64_t(1) << (capacity - 2))),
        records(carve.take<double>((int64_t(1) << kMaxBlockBits) * kRecord)) {}
};

// The first picks, by one block of kExactThreads threads.
__global__ void __launch_bounds__(kExactThreads, 1)
    siren_prefix_kernel(const ExactArguments e, void* workspace) {
  Carve global(workspace), local(dynamic_shared());
  const GridWorkspace w(global, e.capacity);
  ExactTables tables(local, 0);
  tables.squared_norm = w.squared_norm;
  greedy_begin(e, w.greedy);
  exact_block(w.greedy, tables, kPrefix);
}

// Shared memory of `extend`.
struct ExtendShared {
  double* total;                 // [threads]
  double* bits;                  // [kInnerBits + kMaxOuterBits, warps]
  double *score, *norm, *inner;  // [kInner] sums over the members among the inner bits
  double* coefficient;           // [kCoefficients]
  __host__ __device__ explicit ExtendShared(Carve& carve) {
    total = carve.take<double>(kGridThreads);
    bits = carve.take<double>((kInnerBits + kMaxOuterBits) * (kGridThreads / kWarp));
    score = carve.take<double>(kInner);
    norm = carve.take<double>(kInner);
    inner = carve.take<double>(kInner);
    coefficient = carve.take<double>(kCoefficients);
  }
};

// The sums over the members of `bits` (0..31), whose lowest bit is pick `first`.
struct MemberSums {
  double score = 0, norm = 0, inner = 0;
  __device__ void add(const Greedy& s, int count, int a, unsigned bits, int first) {
    for (int u = first; bits; bits >>= 1, ++u) {
      if (!(bits & 1)) continue;
      const double own = s.gram[s.order[u] * count + s.order[u]];
      score += own;
      norm += sqrt(own);
      inner += s.gram[s.order[u] * count + a];
    }
  }
};

// The block's sums [kRecord]: the total, and those of the subsets with each bit set.
__device__ inline void write_record(const ExtendShared& t, double* record) {
  constexpr int kWarps = kGridThreads / kWarp;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  for (int entry = warp; entry < kRecord; entry += kWarps) {
    double sum = 0;
    if (entry <= kGridThreadBits) {  // the total, and the subsets with a thread bit set
      for (int i = lane; i < kGridThreads; i += kWarp)
        if (entry == 0 || i >> (entry - 1) & 1) sum += t.total[i];
    } else if (lane < kWarps) {
      sum = t.bits[(entry - 1 - kGridThreadBits) * kWarps + lane];
    }
    sum = warp_sum(sum);
    if (lane == 0) record[entry] = sum;
  }
}

// The sums over the inner bits, by value.
__device__ inline void fill_inner(const ExtendShared& t, const Greedy& s, int count, int a) {
  const int thread = int(threadIdx.x);
  if (thread >= kInner) return;
  MemberSums sums;
  sums.add(s, count, a, unsigned(thread), kGridThreadBits);
  t.score[thread] = sums.score;
  t.norm[thread] = sums.norm;
  t.inner[thread] = sums.inner;
}

// Visits the subsets U + {a}, a being pick m.
__global__ void __launch_bounds__(kGridThreads)
    siren_extend_kernel(int64_t capacity, void* workspace, int m, int block_bits) {
  Carve global(workspace), local(dynamic_shared());
  const GridWorkspace w(global, capacity);
  const ExtendShared t(local);
  const Greedy& s = w.greedy;
  if (s.control[kStopped]) return;
  const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  constexpr int kWarps = kGridThreads / kWarp;
  const int count = s.control[kCount], a = s.order[m];
  const int outer_bits = m - kPrefix - block_bits;
  const double score = s.gram[a * count + a], norm = sqrt(score);
  fill_coefficients(t.coefficient);
  fill_inner(t, s, count, a);
  MemberSums fixed;  // the thread's bits and the block's
  fixed.add(s, count, a, unsigned(thread), 0);
  fixed.add(s, count, a, unsigned(blockIdx.x), kPrefix + outer_bits);
  const int members = __popc(unsigned(thread)) + __popc(unsigned(blockIdx.x));
  const bool keep = m + 2 < count;
  const int64_t subsets = int64_t(1) << m;
  __syncthreads();  // the tables of the inner bits are complete

  double total = 0, inner_bit[kInnerBits] = {}, outer_bit[kMaxOuterBits] = {};
  for (int outer = 0; outer < 1 << outer_bits; ++outer) {
    MemberSums sums = fixed;
    sums.add(s, count, a, unsigned(outer), kPrefix);
    const int outer_members = members + __popc(unsigned(outer));
    const int64_t base = thread + ((outer + (int64_t(blockIdx.x) << outer_bits)) << kPrefix);
    double squared[kInner];
#pragma unroll
    for (int k = 0; k < kInner; ++k) squared[k] = w.squared_norm[base + (k << kGridThreadBits)];
    double sum = 0;
#pragma unroll
    for (int k = 0; k < kInner; ++k) {
      squared[k] += 2 * (sums.inner + t.inner[k]) + score;
      if (keep) w.squared_norm[subsets + base + (k << kGridThreadBits)] = squared[k];
      const double term =
          subset_term(squared[k], sums.norm + t.norm[k] + norm, sums.score + t.score[k] + score,
                      t.coefficient[outer_members + __popc(unsigned(k))]);
      sum += term;
#pragma unroll
      for (int v = 0; v < kInnerBits; ++v)
        if (k >> v & 1) inner_bit[v] += term;
    }
    total += sum;
#pragma unroll
    for (int v = 0; v < kMaxOuterBits; ++v)
      if (outer >> v & 1) outer_bit[v] += sum;
  }
  t.total[thread] = total;
#pragma unroll
  for (int v = 0; v < kInnerBits + kMaxOuterBits; ++v) {
    const double sum = warp_sum(v < kInnerBits ? inner_bit[v < kInnerBits ? v : 0]
                                               : outer_bit[v < kInnerBits ? 0 : v - kInnerBits]);
    if (lane == 0) t.bits[v * kWarps + warp] = sum;
  }
  __syncthreads();  // every thread's sums are there

  write_record(t, w.records + int64_t(blockIdx.x) * kRecord);
}

// Adds the records up, updates the scores and makes pick m + 1.
__global__ void __launch_bounds__(kFinishThreads)
    siren_finish_kernel(int64_t capacity, void* workspace, int m, int block_bits) {
  Carve global(workspace);
  const GridWorkspace w(global, capacity);
  const Greedy& s = w.greedy;
  if (s.control[kStopped]) return;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int fixed = m - block_bits;  // from this bit on, a bit is one of the block's
  if (warp <= m) {
    double sum = 0;
    for (int b = lane; b < 1 << block_bits; b += kWarp) {
      const double* record = w.records + int64_t(b) * kRecord;
      if (warp < fixed)
        sum += record[1 + warp];
      else if (warp == m || b >> (warp - fixed) & 1)
        sum += record[0];
    }
    sum = warp_sum(sum);
    if (lane == 0) s.weight[warp] = warp == m ? sum : s.weight[warp] + sum;
  }
  __syncthreads();  // the weights are complete
  if (warp == 0) greedy_pick(s, m + 1);
}

__global__ void __launch_bounds__(256) siren_write_kernel(const ExactArguments e, void* workspace) {
  Carve global(workspace);
  const GridWorkspace w(global, e.capacity);
  greedy_end(e, w.greedy);
}

}  // namespace oasis
