// The choice of the instruction set, and the sharing of a range among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "shardlab/kernels.h"

namespace shardlab {

// The best variant this CPU runs; SHARDLAB_ISA=generic asks for another. Throws std::invalid_argument for a name that is not built.
const Kernels& kernels();

// Calls body(begin, end) for disjoint ranges that cover [0, n), on up to `threads` threads. A range is long enough to pay for its
// thread and starts on a multiple of 64 elements, so that no two threads write one cache line.
template <class Body>
void for_ranges(std::int64_t n, int threads, const Body& body) {
#if defined(_OPENMP)
  constexpr std::int64_t grain = 32768;
  const std::int64_t wanted = std::min<std::int64_t>(threads, n / grain);
  if (wanted > 1) {
#pragma omp parallel num_threads(static_cast<int>(wanted))
    {
      const std::int64_t count = omp_get_num_threads();
      const std::int64_t length = ((n + count - 1) / count + 63) / 64 * 64;
      const std::int64_t begin = std::min(n, length * omp_get_thread_num());
      body(begin, std::min(n, begin + length));
    }
    return;
  }
#endif
  (void)threads;
  body(std::int64_t{0}, n);
}

}  // namespace shardlab
