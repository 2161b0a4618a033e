// Gram matrix of given gradients: one pass over memory (N rows, P columns, N << P).
//
// Columns are cut into chunks that fit the caches; within a chunk every pair of rows is multiplied
// from there, so each gradient is read from memory once. Floats are multiplied and summed in
// single precision over runs of kRun products a lane, then flushed into float64 sums. Error of an
// entry: at most (kRun + 1) 2^-24 sum_p |g_ip g_jp| = 2e-6 of it, about 1e-7 in practice.
// float64 input is summed in float64 throughout.
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"

namespace oasis {
namespace OASIS_ISA {
namespace {

constexpr int kRun = 32;
// The work is cut the same way however many threads there are, so no bit depends on them.
constexpr int64_t kSide = 128;  // most rows of a block: its sums and chunks fit the caches
constexpr int64_t kTasks = 64;  // about as many tasks, each with partial sums of its own
#if defined(__AVX512F__)
constexpr int kTileRows = 4, kTileColumns = 4;  // 16 accumulators and 8 operands of 32 registers
#else
constexpr int kTileRows = 2, kTileColumns = 4;
#endif
constexpr int kRowBlock = 4;  // rows are padded to a multiple of it, which both tile sides divide

// Sums of one tile, kept as vectors of doubles until the very end.
constexpr int kLanes = Vector<double>::lanes;

static inline void flush(vf v, double* sums) {
#if defined(__AVX512F__)
  const vd low = (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
  const vd high = (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
#else
  constexpr int half = Vector<float>::lanes / 2;
  vd low, high;
  for (int i = 0; i < half; ++i) low[i] = v[i], high[i] = v[half + i];
#endif
  store(sums, load<vd>(sums) + (low + high));
}
static inline void flush(vd v, double* sums) { store(sums, load<vd>(sums) + v); }

// All products of the rows a[0..R) with b[0..C) over `columns` (a multiple of the vector). Along
// the way the two rows at `next` are fetched into the second-level cache, for the next chunk. Not
// inlined: what goes on around it would take the registers of its loop.
template <typename T>
__attribute__((noinline)) void tile(const T* const* a, const T* const* b, int64_t columns,
                                    const T* const* next, double* sums) {
  using V = typename Vector<T>::type;
  constexpr int lanes = Vector<T>::lanes;
  sums = static_cast<double*>(__builtin_assume_aligned(sums, kVectorBytes));
  for (int64_t begin = 0; begin < columns; begin += kRun * lanes) {
    const int64_t end = begin + kRun * lanes < columns ? begin + kRun * lanes : columns;
    V acc[kTileRows][kTileColumns] = {};
    for (int64_t p = begin; p < end; p += lanes) {
      __builtin_prefetch(next[0] + p, 0, 2);
      __builtin_prefetch(next[1] + p, 0, 2);
      V right[kTileColumns];
#pragma GCC unroll 8
      for (int j = 0; j < kTileColumns; ++j) right[j] = load<V>(b[j] + p);
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        const V left = load<V>(a[i] + p);
#pragma GCC unroll 8
        for (int j = 0; j < kTileColumns; ++j) acc[i][j] += left * right[j];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kTileColumns; ++j)
        flush(acc[i][j], sums + (i * kTileColumns + j) * kLanes);
  }
}

// Rows [first, first + live) of the Gram matrix; padded with rows of zeros for the tiles.
struct RowBlock {
  int64_t first, live, padded;
};

// The Gram matrix in square blocks, each over groups of chunks of columns. A task is one block over
// one group; its partial sums are added in the order of the groups. Up to kSide samples there is
// one block and many groups; beyond, the more blocks the fewer groups, so that all partial sums
// together are kTasks blocks or about half the result, whatever is more.
template <typename T>
struct Plan {
  const StridedSamples& s;
  int64_t total = 1, chunk, chunks, groups, blocks, side, pairs;
  bool direct;  // the rows can be read where they lie

  explicit Plan(const StridedSamples& samples) : s(samples) {
    for (int d = 0; d < s.dims; ++d) total *= s.sizes[d];
    const int64_t padded = round_up(s.samples, kRowBlock);
    blocks = (padded + kSide - 1) / kSide;
    side = round_up((padded + blocks - 1) / blocks, kRowBlock);
    blocks = (padded + side - 1) / side;
    pairs = blocks * (blocks + 1) / 2;
    const int64_t rows = blocks > 1 ? 2 * side : side;
    // A chunk of all rows is about 32 KiB at N = 16, and stays within the second-level cache.
    constexpr int64_t step = kRun * Vector<T>::lanes;
    chunk = 32768 / (rows * int64_t(sizeof(T))) / step * step;
    if (chunk < step) chunk = step;
    chunks = (total + chunk - 1) / chunk;
    groups = kTasks / pairs > 1 ? kTasks / pairs : 1;
    if (groups > chunks) groups = chunks;
    const bool same = s.dtype == (sizeof(T) == 4 ? DType::float32 : DType::float64);
    direct = same && s.dims == 1 && s.strides[0] == 1;
  }
  static int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

  RowBlock block(int64_t index) const {
    const int64_t first = index * side;
    const int64_t live = s.samples - first < side ? s.samples - first : side;
    return {first, live, round_up(live, kRowBlock)};
  }
  // Pairs of blocks row by row of the lower triangle.
  void pair(int64_t index, RowBlock* left, RowBlock* right) const {
    int64_t i = 0;
    for (; index > i; ++i) index -= i + 1;
    *left = block(i);
    *right = block(index);
  }
};

// One thread's memory, and what it does with it.
template <typename T>
struct Worker {
  static constexpr int kTileSums = kTileRows * kTileColumns * kLanes;
  const Plan<T>& plan;
  Scratch<double> sums;
  Scratch<T> packed;
  Scratch<const T*> rows;

  explicit Worker(const Plan<T>& p)
      : plan(p),
        sums(p.side / kTileRows * (p.side / kTileColumns) * kTileSums),
        packed((p.blocks > 1 ? 2 : 1) * p.side * p.chunk),
        rows((p.blocks > 1 ? 2 : 1) * p.side) {}
  explicit operator bool() const { return sums && packed && rows; }

  // Where the columns of a block's rows are, from `slot` on: as they lie, or copied.
  void gather(const RowBlock& block, int64_t slot, int64_t begin, int64_t count, int64_t columns) {
    for (int64_t i = 0; i < block.padded; ++i) {
      T* row = packed.get() + (slot + i) * plan.chunk;
      rows[slot + i] = row;
      int64_t filled = 0;
      if (i < block.live && plan.direct && columns == count) {
        rows[slot + i] =
            static_cast<const T*>(plan.s.data) + (block.first + i) * plan.s.sample_stride + begin;
        continue;
      }
      if (i < block.live) pack(plan.s, block.first + i, begin, filled = count, row);
      for (; filled < columns; ++filled) row[filled] = 0;
    }
  }

  // How many tiles of row tile `r` lie at or below the diagonal.
  static int64_t across(const RowBlock& left, const RowBlock& right, int64_t r) {
    const int64_t whole = right.padded / kTileColumns;
    if (left.first != right.first) return whole;
    const int64_t last = (r * kTileRows + kTileRows - 1) / kTileColumns + 1;
    return last < whole ? last : whole;
  }
  double* cell(int64_t r, int64_t k) const {
    return sums.get() + (r * (plan.side / kTileColumns) + k) * kTileSums;
  }

  // All tiles over a chunk, whose right rows stand at `slot`.
  void multiply(const RowBlock& left, const RowBlock& right, int64_t slot, int64_t columns) {
    const T* const* const row = rows.get();
    const int64_t count = slot + right.padded;
    const uintptr_t ahead = plan.direct ? uintptr_t(plan.chunk) * sizeof(T) : 0;
    int64_t q = 0;
    for (int64_t r = 0; r < left.padded / kTileRows; ++r) {
      const int64_t end = across(left, right, r);
      double* sum = cell(r, 0);
      for (int64_t k = 0; k < end; ++k, sum += kTileSums) {
        // Prefetching past the end of a row is harmless; computed as integers, since the
        // pointer arithmetic would not be.
        const T* next[2];
        for (int j = 0; j < 2; ++j) {
          next[j] = reinterpret_cast<const T*>(reinterpret_cast<uintptr_t>(row[q]) + ahead);
          if (++q == count) q = 0;
        }
        tile<T>(row + r * kTileRows, row + slot + k * kTileColumns, columns, next, sum);
      }
    }
  }

  // The products of one task, into a square of `side`.
  void run(const RowBlock& left, const RowBlock& right, int64_t group, double* out) {
    const bool diagonal = left.first == right.first;
    const int64_t slot = diagonal ? 0 : left.padded, row_tiles = left.padded / kTileRows;
    for (int64_t i = 0; i < cell(row_tiles, 0) - cell(0, 0); ++i) sums[i] = 0;
    const int64_t end = plan.chunks * (group + 1) / plan.groups;
    for (int64_t c = plan.chunks * group / plan.groups; c < end; ++c) {
      const int64_t begin = c * plan.chunk;
      const int64_t width = plan.total - begin < plan.chunk ? plan.total - begin : plan.chunk;
      const int64_t columns = Plan<T>::round_up(width, Vector<T>::lanes);
      gather(left, 0, begin, width, columns);
      if (!diagonal) gather(right, slot, begin, width, columns);
      multiply(left, right, slot, columns);
    }
    for (int64_t r = 0; r < row_tiles; ++r)
      for (int64_t k = 0; k < across(left, right, r); ++k)
        for (int i = 0; i < kTileRows; ++i)
          for (int j = 0; j < kTileColumns; ++j)
            out[(r * kTileRows + i) * plan.side + k * kTileColumns + j] =
                horizontal<double>(load<vd>(cell(r, k) + (i * kTileColumns + j) * kLanes));
  }
};

// Adds the partial sums of a pair of blocks to both halves of the result.
template <typename T>
void add(const Plan<T>& plan, int64_t pair, const double* partial, double* out) {
  RowBlock left, right;
  plan.pair(pair, &left, &right);
  const int64_t n = plan.s.samples, square = plan.side * plan.side;
  for (int64_t i = 0; i < left.live; ++i)
    for (int64_t j = 0; j < right.live && right.first + j <= left.first + i; ++j) {
      double sum = 0;
      for (int64_t g = 0; g < plan.groups; ++g) sum += partial[g * square + i * plan.side + j];
      const int64_t row = left.first + i, column = right.first + j;
      out[row * n + column] += sum;
      out[column * n + row] = out[row * n + column];
    }
}

template <typename T>
bool accumulate(const StridedSamples& s, double* out) {
  const Plan<T> plan(s);
  const int64_t square = plan.side * plan.side;
  const Scratch<double> partial(plan.pairs * plan.groups * square);
  if (!partial) return false;
  bool whole = true;
#pragma omp parallel
  {
    Worker<T> worker(plan);
    if (!worker) {
#pragma omp atomic write
      whole = false;
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < plan.pairs * plan.groups; ++task) {
      if (!worker) continue;
      RowBlock left, right;
      plan.pair(task / plan.groups, &left, &right);
      worker.run(left, right, task % plan.groups, partial.get() + task * square);
    }
  }
  if (!whole) return false;
#pragma omp parallel for schedule(static) if (plan.pairs > 1)
  for (int64_t pair = 0; pair < plan.pairs; ++pair)
    add(plan, pair, partial.get() + pair * plan.groups * square, out);
  return true;
}

}  // namespace

bool gram(const StridedSamples& samples, bool wide, double* out) {
  if (samples.samples == 0) return true;
  if (wide || samples.dtype == DType::float64) return accumulate<double>(samples, out);
  return accumulate<float>(samples, out);
}

}  // namespace OASIS_ISA
}  // namespace oasis
