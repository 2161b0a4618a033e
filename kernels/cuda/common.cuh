// What every kernel shares: dynamic shared memory, its layout, sums and maxima of a warp.
#pragma once
#include <cstdint>

// How a launch is written. tests/emulator has its own: there a launch is a loop on the CPU.
#if !defined(OASIS_LAUNCH)
#define OASIS_LAUNCH(kernel, grid, block, shared, stream, ...) \
  kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define OASIS_GAP 0  // bytes between two arrays; the emulator poisons them
#define OASIS_POISON(address, bytes)
#endif

namespace oasis {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kWarp = 32;

__device__ inline unsigned char* dynamic_shared() {
#if defined(OASIS_EMULATOR)
  return emulator::shared_memory();
#else
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
#endif
}

// Lays arrays out in one buffer. Started at address 0 it only measures, so that the host computes
// the size of a buffer by the very code that divides it.
// A pointer all the way: as an integer it would lose its address space, and what lies in shared
// memory would be read by generic loads.
struct Carve {
  unsigned char* base;
  size_t used = 0;
  __host__ __device__ explicit Carve(const void* buffer)
      : base(static_cast<unsigned char*>(const_cast<void*>(buffer))) {}
  template <typename T>
  __host__ __device__ T* take(int64_t count) {
#if defined(__CUDA_ARCH__)
    T* array = reinterpret_cast<T*>(base + used);  // a branch would hide the space as well
#else
    T* array = base ? reinterpret_cast<T*>(base + used) : nullptr;
#endif
    used += (size_t(count) * sizeof(T) + 15) / 16 * 16;
    if (base) OASIS_POISON(base + used, OASIS_GAP);
    used += OASIS_GAP;
    return array;
  }
};

// The sum of a warp's values, the same in every lane, always added in the same order.
__device__ inline double warp_sum(double value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}

// The largest value of a warp; ties go to the lowest index.
struct Largest {
  double value;
  int index;
};
__device__ inline Largest larger(Largest a, Largest b) {
  const bool other = b.value > a.value || (b.value == a.value && b.index < a.index);
  return {other ? b.value : a.value, other ? b.index : a.index};
}
__device__ inline Largest warp_largest(Largest a) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    a = larger(a, {__shfl_xor_sync(kWholeWarp, a.value, step),
                   __shfl_xor_sync(kWholeWarp, a.index, step)});
  return a;
}

// The largest of `scores` [n] among the `open` [n], the same for every thread of the block; index n
// where there is none. `best` [warps] may be written again behind the caller's next barrier.
__device__ inline Largest block_largest(const bool* open, const double* scores, int n,
                                        Largest* best) {
  Largest mine{-HUGE_VAL, n};
  for (int i = int(threadIdx.x); i < n; i += int(blockDim.x))
    if (open[i]) mine = larger(mine, {scores[i], i});
  mine = warp_largest(mine);
  if (threadIdx.x % kWarp == 0) best[threadIdx.x / kWarp] = mine;
  __syncthreads();  // every warp's largest is there
  Largest pick = best[0];
  for (int w = 1; w < int(blockDim.x) / kWarp; ++w) pick = larger(pick, best[w]);
  return pick;
}

}  // namespace oasis
