// Asynchronous copies for the emulator: made when they are waited for and not before, so that a
// kernel which forgets to wait reads the NaNs that shared memory starts with.
#pragma once
#include "emulator.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes) {
    std::fprintf(stderr, "emulator: misaligned asynchronous copy\n");
    std::abort();
  }
  emulator::self().issued.push_back({to, from, bytes});
}

inline void __pipeline_commit() {
  emulator::Thread& thread = emulator::self();
  thread.batches.push_back(std::move(thread.issued));
  thread.issued.clear();
}

inline void __pipeline_wait_prior(size_t pending) {
  auto& batches = emulator::self().batches;
  for (; batches.size() > pending; batches.pop_front())
    for (const emulator::Copy& copy : batches.front()) {
      auto* to = static_cast<uint32_t*>(copy.to);
      auto* from = static_cast<const uint32_t*>(copy.from);
      for (size_t word = 0; word < copy.bytes / 4; ++word) to[word] = from[word];
    }
}
