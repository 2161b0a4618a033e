// A Gram tile by tensor cores, for bfloat16 and float16: a warp owns 16 x 16 entries.
//
// Which column is which in a product does not matter as long as both operands agree. So a lane
// reads 8 columns of a row at once, and they are two products' worth: its words 0 and 1 stand where
// the first product has its columns 2 l, 2 l + 1 and 2 l + 8, 2 l + 9, words 2 and 3 where the
// second has them. The words of 16 rows of one operand are those of 16 columns of the other, so the
// small tile reads nothing twice.
#pragma once
#include "gram.cuh"
#if defined(OASIS_EMULATOR)
#include "tensor_core.h"
#endif

namespace oasis {

constexpr int kBlock = 16;      // rows and columns of what a warp owns
constexpr int kStep = 32;       // columns that it takes at a time
constexpr int kTensorRun = 64;  // columns summed in single precision
constexpr int kChunksOfStep = kStep * 2 / 16;

// Four words of two numbers each: 8 columns of a row.
struct alignas(16) Eight {
  uint32_t word[4];
};

// sums [16, 8] += a [16, 16] b [16, 8], of which every lane has its share (m16n8k16). `a` is its
// words of rows l / 4 and l / 4 + 8, at `word` and behind it; `b` those of column l / 4.
template <typename Type>
__device__ inline void multiply_add(float* sums, const Eight* a, const Eight& b, int word) {
  const uint32_t a0 = a[0].word[word], a1 = a[1].word[word];
  const uint32_t a2 = a[0].word[word + 1], a3 = a[1].word[word + 1];
  const uint32_t b0 = b.word[word], b1 = b.word[word + 1];
#if defined(OASIS_EMULATOR)
  emulator::multiply_add(sums, {a0, a1, a2, a3}, {b0, b1}, Type::value, __FILE__, __LINE__);
#else
#define OASIS_MMA(type)                                                      \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
  if constexpr (Type::kBrain)
    OASIS_MMA("bf16");
  else
    OASIS_MMA("f16");
#undef OASIS_MMA
#endif
}

// On the diagonal only the lower triangle of 16 x 16 blocks is computed. The small tile is a single
// one: its warps share the columns, and add up at the end.
template <typename Type, int kRowsOfTile, bool kOnDiagonal>
struct TensorCores : GramStage<kRowsOfTile, kOnDiagonal> {
  using Stage = GramStage<kRowsOfTile, kOnDiagonal>;
  using Element = typename Type::Element;
  using Stage::kDiagonal;
  using Stage::kRowBytes;
  using Stage::kRows;
  static constexpr int kSide = kRows / kBlock;
  static constexpr int kWarps = kDiagonal ? kSide * (kSide + 1) / 2 : kSide * kSide;
  static constexpr int kShares = kRows == 16 ? 4 : 1;  // warps for each 16 x 16 entries
  static constexpr int kThreads = kWarps * kShares * kWarp;
  // Blocks that a processor is planned for, and that its registers are enough for.
  static constexpr int kResident = kRows == 16 ? 5 : kDiagonal ? 2 : 1;
  static constexpr int kBlocks = kResident;
  static constexpr int kSteps = kRowBytes / (kStep * int(sizeof(Element))) / kShares;
  static_assert(kSteps * kStep % kTensorRun == 0, "a stage is whole runs");

  int lane, share, r, c;  // block: row r, column c
  bool empty;
  double kept[2][4] = {};

  __device__ TensorCores(int rows_i, int rows_j) {
    lane = int(threadIdx.x) % kWarp;
    const int warp = int(threadIdx.x) / kWarp, block = kWarps == 1 ? 0 : warp / kShares;
    share = warp % kShares;
    r = block / kSide, c = block % kSide;
    if (kDiagonal)
      for (r = 0, c = block; c > r;) c -= ++r;
    empty = r * kBlock >= rows_i || c * kBlock >= rows_j;
  }

  // Two rows follow each other by a multiple of all banks. Every other one has the halves of 128
  // bytes exchanged, so that the 8 lanes which read at a time, 4 of each, meet 32 banks.
  __device__ static int place(int row, int chunk) {
    return row * kRowBytes + (chunk ^ (row & 1) * kChunksOfStep) * 16;
  }

  // 8 columns of row l / 4, or of the one 8 below it, in 16 rows of a stage.
  __device__ Eight load(const unsigned char* rows, int half, int step) const {
    const int row = lane / 4 + 8 * half, chunk = step * kChunksOfStep + lane % 4;
    return *reinterpret_cast<const Eight*>(rows + place(row, chunk));
  }

  __device__ void add(const unsigned char* from) {
    if (empty) return;
    const unsigned char* left = from + r * kBlock * kRowBytes;
    const unsigned char* right = from + ((kDiagonal ? 0 : kRows) + c * kBlock) * kRowBytes;
#pragma unroll 1
    for (int first = 0; first < kSteps; first += kTensorRun / kStep) {
      float sums[2][4] = {};
#pragma unroll
      for (int i = 0; i < kTensorRun / kStep; ++i) {
        const int step = share * kSteps + first + i;
        const Eight a[2] = {load(left, 0, step), load(left, 1, step)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Eight b = load(right, half, step);
#pragma unroll
          for (int word = 0; word < 4; word += 2) multiply_add<Type>(sums[half], a, b, word);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) kept[half][i] += double(sums[half][i]);
    }
  }

  __device__ void store(double* out, unsigned char* shared) {
    double* to = kShares == 1 ? out : reinterpret_cast<double*>(shared) + share * kRows * kRows;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * kBlock + lane / 4 + i / 2 * 8;
        to[row * kRows + c * kBlock + half * 8 + lane % 4 * 2 + i % 2] = kept[half][i];
      }
    if constexpr (kShares > 1) {
      __syncthreads();  // every warp's sums are there
      const double* all = reinterpret_cast<const double*>(shared);
      for (int at = int(threadIdx.x); at < kRows * kRows; at += kThreads) {
        double sum = 0;
        for (int s = 0; s < kShares; ++s) sum += all[s * kRows * kRows + at];
        out[at] = sum;
      }
    }
  }
};

}  // namespace oasis
