// Working memory of a kernel. Where there is none left it is empty, and the kernel says so to its
// caller: nothing may be thrown across an OpenMP region.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace oasis {
namespace OASIS_ISA {

template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count) : data_(allocate(count)) {}
  ~Scratch() { free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  explicit operator bool() const { return data_ != nullptr; }
  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  static constexpr size_t kLine = 64;  // bytes; a size must be a multiple of the alignment
  static T* allocate(int64_t count) {
    if (count < 0 || uint64_t(count) > (UINT64_MAX >> 1) / sizeof(T)) return nullptr;
    const size_t lines = (size_t(count) * sizeof(T) + kLine - 1) / kLine;
    return static_cast<T*>(aligned_alloc(kLine, (lines ? lines : 1) * kLine));
  }
  T* data_;
};

}  // namespace OASIS_ISA
}  // namespace oasis
