// Stands in for the CUDA runtime, so that kernels/cuda compiles unmodified under g++ and runs on
// the CPU: a thread of a block is a fiber, which runs until it must wait for others. Included
// before everything else (-include). The kernels' blocks run one after the other; the order of the
// threads of a block is chosen, since on a device there is none.
#pragma once
#define OASIS_EMULATOR 1
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define OASIS_POISON(address, bytes) ASAN_POISON_MEMORY_REGION(address, bytes)
#else
#define OASIS_POISON(address, bytes) (void)0
#endif
#define OASIS_GAP 32

#define __global__ static
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulator {

struct Copy {  // an asynchronous copy that has been issued and not yet waited for
  void* to;
  const void* from;
  size_t bytes;
};

struct Thread {
  dim3 index, block, block_size, grid_size;
  std::deque<std::vector<Copy>> batches;  // committed copies, oldest first
  std::vector<Copy> issued;
};

Thread& self();
unsigned char* shared_memory();  // of this block, filled with NaN, exactly as long as asked for

// Runs a kernel: `body` once per thread. `kernel` identifies it for the shared-memory limit.
void launch(const void* kernel, dim3 grid, dim3 block, size_t shared,
            const std::function<void()>& body);

void barrier(const char* file, int line);
// The lanes of a warp meet: each gives `bytes` (at most 8) and then sees what all gave.
const uint64_t* meet(unsigned mask, const void* value, size_t bytes, bool orders_memory,
                     const char* file, int line);

// Faults on purpose: the barrier at this line is skipped ("" = none).
void drop_barrier(const char* file, int line);
enum class Order { forward, backward, shuffled };
void schedule(Order order);
void limits(int processors, size_t shared_bytes);

template <typename T>
T shuffle(unsigned mask, T value, unsigned from, const char* file, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  const uint64_t* slots = meet(mask, &value, sizeof(T), false, file, line);
  T result;
  std::memcpy(&result, slots + (from < 32 ? from : self().index.x % 32), sizeof(T));
  return result;
}

inline unsigned ballot(unsigned mask, bool vote, const char* file, int line) {
  const uint64_t mine = vote;
  const uint64_t* slots = meet(mask, &mine, sizeof(mine), false, file, line);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) votes |= unsigned(slots[lane] != 0) << lane;
  return votes;
}

}  // namespace emulator

#define threadIdx (emulator::self().index)
#define blockIdx (emulator::self().block)
#define blockDim (emulator::self().block_size)
#define gridDim (emulator::self().grid_size)
#define __syncthreads() emulator::barrier(__FILE__, __LINE__)
#define __syncwarp() emulator::meet(0xffffffffu, "", 0, true, __FILE__, __LINE__)
#define __shfl_sync(mask, value, lane) \
  emulator::shuffle(mask, value, unsigned(lane), __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits) \
  emulator::shuffle(mask, value, (emulator::self().index.x % 32) ^ (bits), __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, step) \
  emulator::shuffle(mask, value, emulator::self().index.x % 32 + (step), __FILE__, __LINE__)
#define __ballot_sync(mask, vote) emulator::ballot(mask, vote, __FILE__, __LINE__)
// `kernel` may be a function or a pointer to one; arguments are copied, as a launch does.
#define OASIS_LAUNCH(kernel, grid, block, shared, stream, ...)                                  \
  (void)(stream), emulator::launch(reinterpret_cast<const void*>(+kernel), grid, block, shared, \
                                   [=] { kernel(__VA_ARGS__); })

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// --- the host's side of the runtime -----------------------------------------------------------
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = void*;
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
const char* cudaGetErrorString(cudaError_t error);
