// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// Counter-based: the i-th draw of a stream is a pure function of (seed, i), so a stopped run
// resumes exactly, and every device produces the same numbers.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define OASIS_HD __host__ __device__
#else
#define OASIS_HD
#endif

namespace oasis {

struct Philox4 {
  uint32_t x[4];
};

OASIS_HD inline Philox4 philox(uint64_t seed, uint64_t counter) {
  uint32_t x0 = uint32_t(counter), x1 = uint32_t(counter >> 32), x2 = 0, x3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * x0;
    const uint64_t p1 = uint64_t(0xCD9E8D57u) * x2;
    x0 = uint32_t(p1 >> 32) ^ x1 ^ k0;
    x2 = uint32_t(p0 >> 32) ^ x3 ^ k1;
    x1 = uint32_t(p1);
    x3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{x0, x1, x2, x3}};
}

// Uniform in [0, 1) with 53 random bits.
OASIS_HD inline double uniform(uint64_t seed, uint64_t counter) {
  const Philox4 r = philox(seed, counter);
  return (double(r.x[0] >> 5) * 67108864.0 + double(r.x[1] >> 6)) / 9007199254740992.0;
}

}  // namespace oasis
