// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels.cu, for the emulated GPU.
#ifndef EMULATOR_KERNELS_H
#define EMULATOR_KERNELS_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu.h"

// A kernel by its name. Those that copy rows tell of each part that they write (written()).
const Kernel *kernel_named(const std::string &name);

// Given by who launches them: part `part` of the row whose output begins at `row` is about to be written.
void written(const uint8_t *row, uint32_t part);

// What a lane has on the GPU: its State, and lists of Entries.
extern const size_t STATE_BYTES, ENTRY_BYTES;

void begin_state(uint8_t *state, uint64_t owner, uint32_t sequence);

struct StateSeen {
    uint64_t owner;
    uint32_t sequence, late_chunks, busy_calls;
    bool late;  // whether the owner is LATE
    bool clean; // whether all is zero that has to be between calls
};

StateSeen look_at_state(const uint8_t *state);

#endif
