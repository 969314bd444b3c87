// SPDX-License-Identifier: Apache-2.0
// What threads do that look for something again and again.
#ifndef ENGRAMDAX_WAITING_H
#define ENGRAMDAX_WAITING_H

#include <stdint.h>
#include <time.h>

// Leave the core to its other hardware thread for a moment.
static inline void ed_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// CLOCK_MONOTONIC, in nanoseconds.
static inline int64_t ed_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

#endif
