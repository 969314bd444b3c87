// SPDX-License-Identifier: Apache-2.0
// In the place of played_lane.cpp: lanes as they are, c/lane.c with its team of threads. What they do when is not left
// to chance here, but to the machine, and follows from no seed.
#include <sched.h>

#include "gpu.h"
#include "played_lane.h"

static const ed_lane_memory *shared;

const uint32_t MOST_LANE_THREADS = 4; // real ones

void play(ed_lane *, const ed_lane_memory *memory, uint32_t, uint32_t, uint32_t)
{
    shared = memory;
}

void step(ed_lane *lane)
{
    if (resting(lane))
        return;
    // The emulated time that this takes says nothing.
    gpu.progress();
    sched_yield();
}

bool resting(const ed_lane *)
{
    const uint64_t message = __atomic_load_n(shared->message, __ATOMIC_ACQUIRE);
    return ED_LANE_SEQUENCE(message) == __atomic_load_n(shared->finished, __ATOMIC_ACQUIRE);
}
