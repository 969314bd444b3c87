// SPDX-License-Identifier: Apache-2.0
// The CPU's side of a lane, played: c/lane.h for trials, whose workers claim, copy, fall asleep and hand in chunks in
// an order that is left to chance, on the one thread that there is. It breaks no rule of c/lane.h, and fails where the
// GPU does.
#ifndef EMULATOR_PLAYED_LANE_H
#define EMULATOR_PLAYED_LANE_H

#include <cstdint>

extern "C" {
#include "../../../c/lane.h"
}

// How it works: one step in `pace` does something, and who claims one chunk in `late` (0: none) sleeps for up to
// `sleep_ns`, or until the GPU is idle.
void play(struct ed_lane *lane, const struct ed_lane_memory *memory, uint32_t pace, uint32_t late, uint32_t sleep_ns);

// Threads of a lane, at most.
extern const uint32_t MOST_LANE_THREADS;

// Let a worker go on.
void step(struct ed_lane *lane);

// Whether nobody works at a round, and none has been posted.
bool resting(const struct ed_lane *lane);

#endif
