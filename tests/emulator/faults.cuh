// Kernels with a fault each, and one without: tests that the emulator catches what it is there for.
#pragma once
#include "common.cuh"

namespace oasis {

enum class Fault : int {
  none,
  race_in_block,  // a neighbour's value is read without a barrier
  race_between_blocks,
  shared_overflow,   // one past the end of shared memory
  shared_neighbour,  // one past the end of an array within it
  global_overflow,
  uninitialised,      // shared memory that nobody wrote
  divergent_barrier,  // half of the threads wait, the others leave
  two_barriers,       // the halves wait at different barriers
  no_wait,            // an asynchronous copy that nobody waits for
};

// out[i] = in[i] + in[i + 1], neighbours exchanged through shared memory.
__global__ void fault_kernel(Fault fault, const float* in, float* out) {
  Carve carve(dynamic_shared());
  const int n = int(blockDim.x), t = int(threadIdx.x);
  float* values = carve.take<float>(n);
  float* unused = carve.take<float>(n);
  const float* source = in + blockIdx.x * blockDim.x;
  if (fault == Fault::no_wait) {
    __pipeline_memcpy_async(values + t, source + t, 4);
    __pipeline_commit();
  } else {
    values[t] = source[t + (fault == Fault::global_overflow && t == n - 1)];
  }
  if (fault == Fault::shared_overflow && t == 0) unused[n + OASIS_GAP / 4] = 1;
  if (fault == Fault::shared_neighbour && t == 0) values[n] = 1;
  if (fault == Fault::divergent_barrier && t >= n / 2) return;
  if (fault == Fault::two_barriers && t >= n / 2)
    __syncthreads();
  else if (fault != Fault::race_in_block)
    __syncthreads();
  const float next = fault == Fault::uninitialised ? unused[t] : values[(t + 1) % n];
  out[(fault == Fault::race_between_blocks ? 0 : blockIdx.x * blockDim.x) + t] = values[t] + next;
}

}  // namespace oasis
