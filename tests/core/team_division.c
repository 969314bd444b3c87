// SPDX-License-Identifier: Apache-2.0
// Jobs of one chunk a thread: how they are divided, what is learned from them, and that their callers do what nobody
// comes for.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "stress.h"
#include "team.h"

enum { THREADS = 4, SLOW = 2, UNITS = 1000, TIMES_SLOWER = 3, JOBS = 100, NAP_NS = 20 * 1000 };

// Against this, whatever else the machine does meanwhile is little.
static const int64_t UNIT_NS = 1000 * 1000;

static uint16_t begins[ED_MAX_THREADS + 1];
static _Atomic uint32_t counts[ED_MAX_THREADS];
static _Atomic uint32_t begun;
static _Atomic bool over;
static _Thread_local int64_t pretended_ns;

// In the C library's place: the first look at the clock after a chunk adds what the chunk pretends to take, so that
// what is learned of threads does not depend on how the machine runs them. Further looks show the real time.
int clock_gettime(clockid_t clock, struct timespec *t)
{
    const int result = (int)syscall(SYS_clock_gettime, clock, t);
    const int64_t ns = t->tv_nsec + pretended_ns;
    pretended_ns = 0;
    t->tv_sec += ns / (1000 * 1000 * 1000);
    t->tv_nsec = ns % (1000 * 1000 * 1000);
    return result;
}

static uint32_t units_of(uint64_t part)
{
    return (uint32_t)begins[part + 1] - begins[part];
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

// All threads meet first, so that each has one chunk, however late it comes.
static void work(void *context, uint64_t chunk)
{
    const uint32_t *before = context;
    atomic_fetch_add(&begun, 1);
    while (atomic_load(&begun) < *before + THREADS)
        nap();
    pretended_ns = units_of(chunk) * UNIT_NS * (chunk == SLOW ? TIMES_SLOWER : 1);
}

static void count(void *context, uint64_t chunk)
{
    (void)context;
    atomic_fetch_add(&counts[chunk], 1);
}

static void wait_until_over(void *context, uint64_t chunk)
{
    (void)context, (void)chunk;
    atomic_fetch_add(&begun, 1);
    while (!atomic_load(&over))
        nap();
}

// `finest`: the begins of a division of UINT16_MAX units, which are themselves off by half a unit at most.
static void check_division(uint32_t threads, uint16_t units, const uint16_t *finest)
{
    memset(begins, 0xff, sizeof begins);
    ed_team_divide(threads, units, begins);
    check(begins[0] == 0 && begins[threads] == units, "a division leaves units out");
    for (uint32_t i = 0; i < threads; i++) {
        check(begins[i] <= begins[i + 1], "a division goes backwards");
        const int64_t off = (int64_t)begins[i] * UINT16_MAX - (int64_t)finest[i] * units;
        check(2 * llabs(off) <= UINT16_MAX + units, "a division is not to the nearest unit");
    }
}

static void check_divisions(uint64_t *chance)
{
    for (uint32_t threads = 2; threads <= ED_MAX_THREADS; threads++) {
        uint16_t finest[ED_MAX_THREADS + 1];
        ed_team_divide(threads, UINT16_MAX, finest);
        for (uint16_t units = 0; units < 2 * ED_MAX_THREADS; units++)
            check_division(threads, units, finest);
        check_division(threads, UINT16_MAX, finest);
        check_division(threads, (uint16_t)next(chance), finest);
    }
}

int main(void)
{
    uint64_t chance = 1;
    check_divisions(&chance);
    ed_team_divide(THREADS, UNITS, begins);
    for (int i = 0; i < THREADS; i++)
        check(units_of((uint64_t)i) == UNITS / THREADS, "a first division is not equal");

    // A thread that takes three times as long for a unit gets fewer, and the others more.
    ed_team_configure(THREADS, 0);
    for (int i = 0; i < JOBS; i++) {
        ed_team_divide(THREADS, UNITS, begins);
        uint32_t before = atomic_load(&begun);
        struct ed_job job = {.run = work, .context = &before, .chunks = THREADS, .divided = true};
        ed_team_run(&job, THREADS - 1);
    }
    for (uint64_t i = 0; i < THREADS; i++)
        check((units_of(i) < UNITS / THREADS * 3 / 4) == (i == SLOW), "a slow thread has as much to do as others");
    check_divisions(&chance);

    // All workers are in another job.
    struct ed_job held = {.run = wait_until_over, .chunks = THREADS - 1};
    ed_team_post(&held, THREADS - 1);
    while (atomic_load(&begun) < (JOBS + 1) * THREADS - 1)
        nap();
    struct ed_job job = {.run = count, .chunks = THREADS, .divided = true};
    ed_team_run(&job, THREADS - 1);
    atomic_store(&over, true);
    ed_team_wait(&held);
    for (int i = 0; i < THREADS; i++)
        check(atomic_load(&counts[i]) == 1, "a chunk was done more than once, or not at all");
    return 0;
}
