// SPDX-License-Identifier: Apache-2.0
// The memory of a trial. Each piece ends at a page that nobody may touch, and another one lies before it: who reads or
// writes beyond it fails, with the name of the piece.
#ifndef EMULATOR_MEMORY_H
#define EMULATOR_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <vector>

class Memory
{
  public:
    ~Memory();

    // New memory, full of 0xA5, for `count` of T, as near to its end as `align` lets it.
    template <typename T> T *give(const char *name, size_t count, size_t align = alignof(T))
    {
        return (T *)bytes(name, count * sizeof(T), align);
    }

    // From here on nobody writes the piece that begins there.
    void seal(const void *begin);

    // From here on the piece that begins there is written while kernels run: none may read it past the coherent caches.
    void changes(const void *begin);

  private:
    uint8_t *bytes(const char *name, size_t bytes, size_t align);

    std::vector<void *> mine;
};

// Whether `at` lies in a piece that changes.
bool may_change(const void *at);

// Have faults told by the name of the piece that they lie beside.
void tell_faults();

#endif
