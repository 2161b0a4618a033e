// What launchers share: how an error is reported, and shared memory beyond the default limit.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

#define OASIS_CHECK(call)                                         \
  do {                                                            \
    const cudaError_t error_ = (call);                            \
    if (error_ != cudaSuccess) return cudaGetErrorString(error_); \
  } while (false)

namespace oasis {

constexpr size_t kDefaultShared = 48 * 1024;

// This module has a CUDA runtime of its own, linked statically: it does not rely on the device that
// another runtime in the process made current.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    error = cudaGetDevice(&before_);
    if (error == cudaSuccess && before_ != device_) error = cudaSetDevice(device_);
  }
  ~DeviceGuard() {
    if (before_ >= 0 && before_ != device_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  cudaError_t error;

 private:
  int device_, before_ = -1;
};

inline cudaError_t device_attribute(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess ? error : cudaDeviceGetAttribute(value, attribute, device);
}

// Lets a kernel have `bytes` of dynamic shared memory.
template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, size_t bytes) {
  if (bytes <= kDefaultShared) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
}

}  // namespace oasis
