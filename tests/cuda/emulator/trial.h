// SPDX-License-Identifier: Apache-2.0
// A random trial: a table, a lane and some calls, launched by c/cuda.c onto the emulated GPU, with all that comes out
// of it checked.
#ifndef EMULATOR_TRIAL_H
#define EMULATOR_TRIAL_H

#include <cstdint>

// Make a trial of its kind, and carry it out. All of it follows from the seed.
void run_trial(uint64_t seed);

#endif
