// SPDX-License-Identifier: Apache-2.0
// A worker that comes late to a job with several chunks a thread, whose own chunks others have done, helps with theirs.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <time.h>

#include "stress.h"
#include "team.h"
#include "waiting.h"

enum { THREADS = 3, EACH = 3, LATE_CELL = 1, NAP_NS = 20 * 1000, SECONDS = 20, LAST = THREADS * EACH - 1 };

static _Atomic bool begun[THREADS * EACH], held, released;

static void wait_for(_Atomic bool *what, const char *wrong)
{
    for (const int64_t begin = ed_now_ns(); !atomic_load(what); nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL))
        check(ed_now_ns() - begin < SECONDS * 1000000000LL, wrong);
}

static void hold(void *context, uint64_t chunk)
{
    (void)context, (void)chunk;
    atomic_store(&held, true);
    wait_for(&released, "a worker was never let go");
}

// The caller begins when the other worker is in the last cell, and lets the late one go when all of its chunks are
// done.
static void work(void *context, uint64_t chunk)
{
    (void)context;
    atomic_store(&begun[chunk], true);
    if (chunk == 0)
        wait_for(&begun[LAST - 2], "a worker did not come");
    if (chunk == LAST - 1)
        atomic_store(&released, true);
    if (chunk == LAST - 1 || chunk == LAST - 2)
        wait_for(&begun[LAST], "a worker that came late did not help");
}

int main(void)
{
    // The first worker, which in the job after has place LATE_CELL.
    ed_team_configure(2, 0);
    struct ed_job holding = {.run = hold, .chunks = 1};
    ed_team_post(&holding, 1);
    wait_for(&held, "nobody came");
    ed_team_configure(THREADS, 0);
    struct ed_job job = {.run = work, .chunks = THREADS * EACH};
    ed_team_run(&job, THREADS - 1);
    ed_team_wait(&holding);
    return 0;
}
