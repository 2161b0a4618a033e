// Gram matrix of given gradients [N, P], N << P: one pass over memory.
//
// A block owns a range of columns and a pair of row tiles (I, J). It streams both through shared
// memory, two buffers deep, by asynchronous 16-byte copies that bypass the registers: while one
// stage is multiplied the next is on its way. What multiplies is `Cells`: CUDA cores
// (gram_lanes.cuh) or tensor cores (gram_tensor.cuh). Single-precision sums run over few columns,
// and those are added up in float64. A second kernel adds the blocks' sums in a fixed order: no
// atomics, results repeat bit for bit.
#pragma once
#include <cuda_pipeline_primitives.h>

#include "common.cuh"
#include "elements.cuh"

namespace oasis {

struct GramArguments {
  const void* data;
  int64_t samples, columns, row_stride;  // in elements; columns of a row are contiguous
  int64_t columns_per_block;             // a multiple of a stage
  bool aligned;                          // every row begins at a multiple of 16 bytes
  int tiles;                             // row tiles per side
  double* partial;                       // [pairs of tiles, splits, rows, rows]
};

// Bytes of a row in a stage. On the diagonal (I == J) one tile is staged, else both.
template <int kRowsOfTile, bool kOnDiagonal>
struct GramStage {
  static constexpr int kRows = kRowsOfTile;
  static constexpr bool kDiagonal = kOnDiagonal;
  static constexpr int kRowBytes = kRows == 16 ? 1024 : 256;
  static constexpr int kBuffer = (kDiagonal ? kRows : 2 * kRows) * kRowBytes;
};

// Copies one stage of one tile. Columns beyond the end become zeros; rows beyond it were zeroed.
template <typename Cells>
__device__ inline void gram_stage(const GramArguments& g, int first_row, int64_t begin, int64_t end,
                                  unsigned char* to) {
  using Element = typename Cells::Element;
  constexpr int kPerChunk = 16 / sizeof(Element);
  constexpr int kChunks = Cells::kRowBytes / 16;
  const int left = int(g.samples) - first_row;
  const int rows = left < Cells::kRows ? left : Cells::kRows;
  const Element* data = static_cast<const Element*>(g.data);
  for (int c = int(threadIdx.x); c < rows * kChunks; c += Cells::kThreads) {
    const int row = c / kChunks, chunk = c % kChunks;
    Element* out = reinterpret_cast<Element*>(to + Cells::place(row, chunk));
    const int64_t column = begin + chunk * kPerChunk;
    if (g.aligned && column + kPerChunk <= end) {
      __pipeline_memcpy_async(out, data + int64_t(first_row + row) * g.row_stride + column, 16);
    } else {
#pragma unroll
      for (int e = 0; e < kPerChunk; ++e)
        out[e] = column + e < end ? data[int64_t(first_row + row) * g.row_stride + column + e]
                                  : Element(0);
    }
  }
}

// The row tiles of block y: on the diagonal tile y twice, else the y-th pair I > J.
template <bool kDiagonal>
__device__ inline void gram_tiles(int* tile_i, int* tile_j) {
  *tile_i = *tile_j = int(blockIdx.y);
  if (kDiagonal) return;
  *tile_i = 1;
  for (; *tile_j >= *tile_i; ++*tile_i) *tile_j -= *tile_i;
}

template <typename Cells>
__global__ void __launch_bounds__(Cells::kThreads, Cells::kBlocks)
    gram_kernel(const GramArguments g) {
  constexpr int kColumns = Cells::kRowBytes / int(sizeof(typename Cells::Element));
  unsigned char* shared = dynamic_shared();
  int tile_i, tile_j;
  gram_tiles<Cells::kDiagonal>(&tile_i, &tile_j);
  const int64_t first = int64_t(blockIdx.x) * g.columns_per_block;
  const int64_t limit = first + g.columns_per_block;
  const int64_t end = limit < g.columns ? limit : g.columns;
  const int stages =
      int((end - first + kColumns - 1) / kColumns);  // of a device's memory: they fit
  const int row_i = tile_i * Cells::kRows, row_j = tile_j * Cells::kRows;

  for (int b = int(threadIdx.x) * 4; b < 2 * Cells::kBuffer; b += Cells::kThreads * 4) {
    const int row = b % Cells::kBuffer / Cells::kRowBytes;
    const int sample = row < Cells::kRows ? row_i + row : row_j + row - Cells::kRows;
    if (sample >= g.samples) *reinterpret_cast<uint32_t*>(shared + b) = 0;
  }

  const auto fetch = [&](int stage) {
    unsigned char* to = shared + (stage & 1) * Cells::kBuffer;
    const int64_t begin = first + int64_t(stage) * kColumns;
    gram_stage<Cells>(g, row_i, begin, end, to);
    if (!Cells::kDiagonal)
      gram_stage<Cells>(g, row_j, begin, end, to + Cells::kRows * Cells::kRowBytes);
  };

  Cells cells(int(g.samples) - row_i, int(g.samples) - row_j);
  fetch(0);
  __pipeline_commit();
  for (int stage = 0; stage < stages; ++stage) {
    if (stage + 1 < stages) fetch(stage + 1);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();  // everybody's copies of this stage have landed
    cells.add(shared + (stage & 1) * Cells::kBuffer);
    __syncthreads();  // before the next copies overwrite this stage
  }
  const int64_t pair = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
  cells.store(g.partial + pair * (Cells::kRows * Cells::kRows), shared);
}

// One warp per entry of the lower triangle: adds the splits up and stores both halves.
template <int kRows, bool kDiagonal>
__global__ void __launch_bounds__(256)
    gram_reduce_kernel(const double* partial, int64_t samples, int splits, bool add, double* out) {
  int tile_i, tile_j;
  gram_tiles<kDiagonal>(&tile_i, &tile_j);
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
