// Included first in every kernel's source: its allocations are counted, and can be made to fail.
#pragma once
#include <cstdlib>

namespace allocation {
// The next allocation but `left` gives nothing, unless `left` is negative.
extern long left, open;
void* take(size_t alignment, size_t size);
void give(void* memory);
}  // namespace allocation

#define aligned_alloc(alignment, size) allocation::take(alignment, size)
#define free(memory) allocation::give(memory)
