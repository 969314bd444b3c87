// SPDX-License-Identifier: Apache-2.0
// What the programs of this folder share: numbers at random, and an end at the first thing that is wrong.
#ifndef ENGRAMDAX_STRESS_H
#define ENGRAMDAX_STRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "wrong: %s\n", what);
        abort();
    }
}

#endif
