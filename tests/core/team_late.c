// SPDX-License-Identifier: Apache-2.0
// A worker that comes late to a job with several chunks a thread, whose own chunks others have done, helps with theirs.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <time.h>

#include "stress.h"
#include "team.h"
#include "waiting.h"

enum { THREADS = 3, EACH = 3, CHUNKS = THREADS * EACH, NAP_NS = 20 * 1000, SECONDS = 20 };
// The caller's chunks are the first ones, then come those of the worker that is late, then the prompt worker's.
enum { PROMPT_FIRST = 2 * EACH, PROMPT_SECOND, PROMPT_THIRD };

static _Atomic bool begun[CHUNKS], held, released;

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

// The caller waits until the prompt worker is in its first chunk, and does its own chunks and the late worker's. In the
// prompt one's second it lets the late worker go, for whom only the third is left.
static void work(void *context, uint64_t chunk)
{
    (void)context;
    atomic_store(&begun[chunk], true);
    if (chunk == 0)
        wait_for(&begun[PROMPT_FIRST], "a worker did not come");
    if (chunk == PROMPT_SECOND)
        atomic_store(&released, true);
    if (chunk == PROMPT_FIRST || chunk == PROMPT_SECOND)
        wait_for(&begun[PROMPT_THIRD], "a worker that came late did not help");
}

int main(void)
{
    // The only worker there is, the first, whose chunks in the next job are the second EACH.
    ed_team_configure(2, 0);
    struct ed_job holding = {.run = hold, .chunks = 1};
    ed_team_post(&holding, 1);
    wait_for(&held, "nobody came");
    ed_team_configure(THREADS, 0);
    struct ed_job job = {.run = work, .chunks = CHUNKS};
    ed_team_run(&job, THREADS - 1);
    ed_team_wait(&holding);
    return 0;
}
