// What the CUDA runtime sees. Linked statically: with no driver the count is zero, not an error.
#include <cuda_runtime_api.h>

namespace oasis {

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace oasis
