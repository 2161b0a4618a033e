// A Gram tile by CUDA cores, for float32 and float64. A group of L lanes multiplies 8 rows by 8
// rows, each lane its own columns. Single-precision sums run over at most 32 products a lane; then
// the lanes of a group add theirs up by a transposing reduction, which leaves 64 / L entries in
// each lane, and those are kept in float64.
#pragma once
#include "gram.cuh"

namespace oasis {

constexpr int kMicro = 8, kCells = kMicro * kMicro;
constexpr int kRun = 32;  // products summed in single precision

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

// On the diagonal only the lower triangle of 8 x 8 cells is computed.
template <typename Type, int kRowsOfTile, bool kOnDiagonal>
struct CudaCores : GramStage<kRowsOfTile, kOnDiagonal> {
  using Stage = GramStage<kRowsOfTile, kOnDiagonal>;
  using Element = typename Type::Element;
  using Stage::kDiagonal;
  using Stage::kRowBytes;
  using Stage::kRows;
  static constexpr int kSide = kRows / kMicro;
  static constexpr int kGroups = kDiagonal ? kSide * (kSide + 1) / 2 : kSide * kSide;
  static constexpr int kLanes = kRows == 16 ? 32 : kDiagonal ? 8 : 4;
  static constexpr int kThreads = kGroups * kLanes;
  // Off the diagonal a block needs more than half of the registers; 0 leaves it to the compiler.
  static constexpr int kBlocks = kDiagonal ? 0 : 1;
  static constexpr int kResident = kRows == 16 ? 5 : 1;  // blocks that a processor is planned for
  static constexpr int kKept = kCells / kLanes;          // entries of float64 in each lane
  static constexpr int kNumbers = kRowBytes / int(sizeof(Element));
  static constexpr int kSteps = kNumbers / kLanes;
  static constexpr int kStagesPerRun = kRun / kSteps;
  static_assert(kStagesPerRun >= 1, "a stage is longer than a run");

  int lane, r, c, run = 0;  // 8 x 8 cells: row group r, column group c
  bool empty;
  Element cells[kCells] = {};
  double kept[kKept] = {};

  __device__ CudaCores(int rows_i, int rows_j) {
    lane = int(threadIdx.x) % kLanes;
    const int group = int(threadIdx.x) / kLanes;
    r = group / kSide, c = group % kSide;
    if (kDiagonal)
      for (r = 0, c = group; c > r;) c -= ++r;
    empty = r * kMicro >= rows_i || c * kMicro >= rows_j;
  }

  __device__ static int place(int row, int chunk) { return row * kRowBytes + chunk * 16; }

  __device__ void add(const unsigned char* from) {
    const Element* left = reinterpret_cast<const Element*>(from + r * kMicro * kRowBytes);
    const Element* right =
        reinterpret_cast<const Element*>(from + ((kDiagonal ? 0 : kRows) + c * kMicro) * kRowBytes);
#pragma unroll 1
    for (int step = 0; step < (empty ? 0 : kSteps); ++step) {
      // The groups of a warp walk through different columns, so that they use different banks.
      const int at = (step * kLanes + int(threadIdx.x) % kWarp) % kNumbers;
      Element a[kMicro], b[kMicro];
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
        a[i] = left[i * kNumbers + at];
        b[i] = right[i * kNumbers + at];
      }
#pragma unroll
      for (int i = 0; i < kMicro; ++i)
#pragma unroll
        for (int j = 0; j < kMicro; ++j) cells[i * kMicro + j] += a[i] * b[j];
    }
    if constexpr (sizeof(Element) == 4) {
      if (++run == kStagesPerRun) flush(), run = 0;
    }
  }

  __device__ void flush() {
    Transpose<kLanes, kCells, Element>::reduce(cells, lane);
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] += double(cells[i]);
#pragma unroll
    for (int i = 0; i < kCells; ++i) cells[i] = 0;
  }

  __device__ void store(double* out, unsigned char*) {
    flush();
    const int cell = first_cell<kLanes>(lane);
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int at = cell + i;
      out[(r * kMicro + at / kMicro) * kRows + c * kMicro + at % kMicro] = kept[i];
    }
  }
};

}  // namespace oasis
