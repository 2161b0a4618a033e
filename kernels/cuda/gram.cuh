// Gram matrix of given gradients [N, P], N << P: one pass over memory.
//
// A block owns a range of columns and a pair of row tiles (I, J). It streams both through shared
// memory, two buffers deep, by asynchronous 16-byte copies that bypass the registers: while one
// stage is multiplied the next is on its way. A group of L lanes multiplies 8 rows by 8 rows, each
// lane its own columns. Single-precision sums run over at most 32 products a lane; then the lanes
// of a group add theirs up by a transposing reduction, which leaves 64 / L entries in each lane,
// and those are kept in float64. A second kernel adds the blocks' sums in a fixed order: no
// atomics, results repeat bit for bit.
#pragma once
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>

#include "common.cuh"

namespace oasis {

constexpr int kMicro = 8, kCells = kMicro * kMicro;
constexpr int kRun = 32;  // products summed in single precision

// How one element type is read from shared memory: a word holds kPerWord columns.
struct Float32 {
  using Element = float;
  using Word = float;
  using Sum = float;
  static constexpr int kPerWord = 1;
  __device__ static void unpack(Word w, Sum* out) { out[0] = w; }
};
struct Float64 {
  using Element = double;
  using Word = double;
  using Sum = double;
  static constexpr int kPerWord = 1;
  __device__ static void unpack(Word w, Sum* out) { out[0] = w; }
};
struct Bfloat16 {
  using Element = uint16_t;
  using Word = uint32_t;
  using Sum = float;
  static constexpr int kPerWord = 2;
  __device__ static void unpack(Word w, Sum* out) {
    out[0] = __uint_as_float(w << 16);
    out[1] = __uint_as_float(w & 0xffff0000u);
  }
};
struct Float16 {
  using Element = uint16_t;
  using Word = uint32_t;
  using Sum = float;
  static constexpr int kPerWord = 2;
  __device__ static void unpack(Word w, Sum* out) {
    out[0] = __half2float(__ushort_as_half(uint16_t(w & 0xffffu)));
    out[1] = __half2float(__ushort_as_half(uint16_t(w >> 16)));
  }
};

// Rows of a tile, bytes of a row in a stage, and the groups of lanes. On the diagonal (I == J) only
// the lower triangle of 8 x 8 cells is computed and one tile is staged, else both and all.
template <int kRowsOfTile, bool kDiagonal>
struct GramShape {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kRowBytes = kRows == 16 ? 1024 : 256;
  static constexpr int kSide = kRows / kMicro;
  static constexpr int kGroups = kDiagonal ? kSide * (kSide + 1) / 2 : kSide * kSide;
  static constexpr int kLanes = kRows == 16 ? 32 : kDiagonal ? 8 : 4;
  static constexpr int kThreads = kGroups * kLanes;
  static constexpr int kStagedRows = kDiagonal ? kRows : 2 * kRows;
  static constexpr int kBuffer = kStagedRows * kRowBytes;
  // Off the diagonal a block needs more than half of the registers; 0 leaves it to the compiler.
  static constexpr int kBlocks = kDiagonal ? 0 : 1;
  static constexpr int kKept = kCells / kLanes;  // entries of float64 in each lane
};

struct GramArguments {
  const void* data;
  int64_t samples, columns, row_stride;  // in elements; columns of a row are contiguous
  int64_t columns_per_block;             // a multiple of a stage
  bool aligned;                          // every row begins at a multiple of 16 bytes
  int tiles;                             // row tiles per side
  double* partial;                       // [pairs of tiles, splits, rows, rows]
};

// Copies one stage of one tile. Columns beyond the end become zeros; rows beyond it were zeroed.
template <typename Type, typename Shape>
__device__ inline void gram_stage(const GramArguments& g, int64_t first_row, int64_t begin,
                                  int64_t end, unsigned char* to) {
  using Element = typename Type::Element;
  constexpr int kPerChunk = 16 / sizeof(Element);
  constexpr int kChunks = Shape::kRowBytes / 16;
  const int64_t left = g.samples - first_row;
  const int rows = int(left < Shape::kRows ? left : Shape::kRows);
  const Element* data = static_cast<const Element*>(g.data);
  for (int c = int(threadIdx.x); c < rows * kChunks; c += Shape::kThreads) {
    const int row = c / kChunks, chunk = c % kChunks;
    Element* out = reinterpret_cast<Element*>(to + row * Shape::kRowBytes) + chunk * kPerChunk;
    const int64_t column = begin + chunk * kPerChunk;
    if (g.aligned && column + kPerChunk <= end) {
      __pipeline_memcpy_async(out, data + (first_row + row) * g.row_stride + column, 16);
    } else {
#pragma unroll
      for (int e = 0; e < kPerChunk; ++e)
        out[e] =
            column + e < end ? data[(first_row + row) * g.row_stride + column + e] : Element(0);
    }
  }
}

// Adds up, over the L lanes of a group, what each holds for the 64 cells: at every step a lane
// hands half of its cells to its partner. Lane l ends with cells whose high bits are l's, reversed.
template <int kLanes, int kCount, typename Sum>
struct Transpose {
  __device__ static void reduce(Sum* cells, int lane) {
    constexpr int kHalf = kCount / 2, kBit = kLanes / 2;
    const bool upper = lane & kBit;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const Sum mine = upper ? cells[kHalf + i] : cells[i];
      const Sum other = upper ? cells[i] : cells[kHalf + i];
      cells[i] = mine + __shfl_xor_sync(kWholeWarp, other, kBit);
    }
    Transpose<kBit, kHalf, Sum>::reduce(cells, lane);
  }
};
template <int kCount, typename Sum>
struct Transpose<1, kCount, Sum> {
  __device__ static void reduce(Sum*, int) {}
};

// The first of the kCells / kLanes cells that lane `lane` holds after Transpose.
template <int kLanes>
__device__ inline int first_cell(int lane) {
  int cell = 0, half = kCells / 2;
  for (int bit = kLanes / 2; bit > 0; bit /= 2, half /= 2)
    if (lane & bit) cell += half;
  return cell;
}

template <typename Type, typename Shape, bool kDiagonal>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    gram_kernel(const GramArguments g) {
  using Word = typename Type::Word;
  using Sum = typename Type::Sum;
  constexpr int kColumns = Shape::kRowBytes / int(sizeof(typename Type::Element));
  constexpr int kWords = Shape::kRowBytes / int(sizeof(Word));
  constexpr int kSteps = kWords / Shape::kLanes;
  constexpr int kStagesPerRun = kRun / (kSteps * Type::kPerWord);
  static_assert(kStagesPerRun >= 1, "a stage is longer than a run");
  unsigned char* shared = dynamic_shared();

  // Which tiles: on the diagonal block y is tile y, else the y-th pair I > J.
  int tile_i = int(blockIdx.y), tile_j = tile_i;
  if (!kDiagonal) {
    tile_i = 1;
    for (tile_j = int(blockIdx.y); tile_j >= tile_i; ++tile_i) tile_j -= tile_i;
  }
  // Which 8 x 8 cells: row group r, column group c.
  const int lane = int(threadIdx.x) % Shape::kLanes, group = int(threadIdx.x) / Shape::kLanes;
  int r = group / Shape::kSide, c = group % Shape::kSide;
  if (kDiagonal)
    for (r = 0, c = group; c > r;) c -= ++r;

  const int64_t first = int64_t(blockIdx.x) * g.columns_per_block;
  const int64_t limit = first + g.columns_per_block;
  const int64_t end = limit < g.columns ? limit : g.columns;
  const int64_t stages = (end - first + kColumns - 1) / kColumns;
  const int64_t row_i = int64_t(tile_i) * Shape::kRows, row_j = int64_t(tile_j) * Shape::kRows;
  const bool empty = row_i + r * kMicro >= g.samples || row_j + c * kMicro >= g.samples;

  for (int b = int(threadIdx.x) * 4; b < 2 * Shape::kBuffer; b += Shape::kThreads * 4) {
    const int row = b % Shape::kBuffer / Shape::kRowBytes;
    const int64_t sample = row < Shape::kRows ? row_i + row : row_j + row - Shape::kRows;
    if (sample >= g.samples) *reinterpret_cast<uint32_t*>(shared + b) = 0;
  }

  const auto fetch = [&](int64_t stage) {
    unsigned char* to = shared + (stage & 1) * Shape::kBuffer;
    const int64_t begin = first + stage * kColumns;
    gram_stage<Type, Shape>(g, row_i, begin, end, to);
    if (!kDiagonal)
      gram_stage<Type, Shape>(g, row_j, begin, end, to + Shape::kRows * Shape::kRowBytes);
  };

  Sum cells[kCells] = {};
  double kept[Shape::kKept] = {};
  const auto flush = [&] {
    Transpose<Shape::kLanes, kCells, Sum>::reduce(cells, lane);
#pragma unroll
    for (int i = 0; i < Shape::kKept; ++i) kept[i] += double(cells[i]);
#pragma unroll
    for (int i = 0; i < kCells; ++i) cells[i] = 0;
  };

  fetch(0);
  __pipeline_commit();
  int run = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    if (stage + 1 < stages) fetch(stage + 1);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();  // everybody's copies of this stage have landed
    const unsigned char* from = shared + (stage & 1) * Shape::kBuffer;
    const Word* left = reinterpret_cast<const Word*>(from + r * kMicro * Shape::kRowBytes);
    const Word* right = reinterpret_cast<const Word*>(
        from + ((kDiagonal ? 0 : Shape::kRows) + c * kMicro) * Shape::kRowBytes);
#pragma unroll 1
    for (int step = 0; step < (empty ? 0 : kSteps); ++step) {
      // The groups of a warp walk through different columns, so that they use different banks.
      const int word = (step * Shape::kLanes + int(threadIdx.x) % kWarp) % kWords;
      Sum a[kMicro][Type::kPerWord], b[kMicro][Type::kPerWord];
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
        Type::unpack(left[i * kWords + word], a[i]);
        Type::unpack(right[i * kWords + word], b[i]);
      }
#pragma unroll
      for (int e = 0; e < Type::kPerWord; ++e)
#pragma unroll
        for (int i = 0; i < kMicro; ++i)
#pragma unroll
          for (int j = 0; j < kMicro; ++j) cells[i * kMicro + j] += a[i][e] * b[j][e];
    }
    if constexpr (sizeof(Sum) == 4) {
      if (++run == kStagesPerRun) flush(), run = 0;
    }
    __syncthreads();  // before the next copies overwrite this stage
  }
  flush();

  const int64_t pair = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
  double* out = g.partial + pair * (Shape::kRows * Shape::kRows);
  const int cell = first_cell<Shape::kLanes>(lane);
#pragma unroll
  for (int i = 0; i < Shape::kKept; ++i) {
    const int at = cell + i;
    out[(r * kMicro + at / kMicro) * Shape::kRows + c * kMicro + at % kMicro] = kept[i];
  }
}

// One warp per entry of the lower triangle: adds the splits up and stores both halves.
template <int kRows, bool kDiagonal>
__global__ void __launch_bounds__(256)
    gram_reduce_kernel(const double* partial, int64_t samples, int splits, bool add, double* out) {
  int tile_i = int(blockIdx.y), tile_j = tile_i;
  if (!kDiagonal) {
    tile_i = 1;
    for (tile_j = int(blockIdx.y); tile_j >= tile_i; ++tile_i) tile_j -= tile_i;
  }
  const int entry = int(blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t i = int64_t(tile_i) * kRows + entry / kRows;
  const int64_t j = int64_t(tile_j) * kRows + entry % kRows;
  if (i >= samples || j > i) return;
  const double* from = partial + int64_t(blockIdx.y) * splits * (kRows * kRows) + entry;
  double sum = 0;
  for (int s = lane; s < splits; s += kWarp) sum += from[int64_t(s) * (kRows * kRows)];
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (add) sum += out[i * samples + j];
  out[i * samples + j] = sum;
  out[j * samples + i] = sum;
}

}  // namespace oasis
