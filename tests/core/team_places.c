// SPDX-License-Identifier: Apache-2.0
// Jobs side by side for which the team has workers enough: no chunk ends before all are begun, and callers do none.
// Usage: team_places WORKERS HELPERS..., of which each is a job's.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <time.h>

#include "stress.h"
#include "team.h"
#include "waiting.h"

enum { ROUNDS = 60, MOST_JOBS = 16, NAP_NS = 20 * 1000, SECONDS = 20 };

static _Atomic uint32_t begun;
static uint32_t wanted;

static void nap(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void wait_for_all(void *context, uint64_t chunk)
{
    (void)context, (void)chunk;
    atomic_fetch_add(&begun, 1);
    for (const int64_t begin = ed_now_ns(); atomic_load(&begun) < wanted; nap(NAP_NS))
        check(ed_now_ns() - begin < SECONDS * 1000000000LL, "a job had no worker while others slept");
}

static void post_and_wait(struct ed_job *jobs, int count)
{
    atomic_store(&begun, 0);
    for (int i = 0; i < count; i++)
        ed_team_post(&jobs[i], (int)jobs[i].chunks);
    for (int i = 0; i < count; i++)
        while (!ed_team_done(&jobs[i]))
            nap(NAP_NS);
    for (int i = 0; i < count; i++)
        ed_team_wait(&jobs[i]);
}

int main(int argc, char **argv)
{
    const int workers = argc > 2 ? atoi(argv[1]) : 0, count = argc - 2;
    check(workers > 0 && count <= MOST_JOBS, "the usage");
    struct ed_job all = {.run = wait_for_all, .chunks = (uint32_t)workers}, jobs[MOST_JOBS] = {0};
    ed_team_configure(1 + workers, 0);
    post_and_wait(&all, 1); // starts them, and waits for nobody
    for (int i = 0; i < count; i++) {
        jobs[i] = (struct ed_job){.run = wait_for_all, .chunks = (uint32_t)atoi(argv[2 + i])};
        wanted += jobs[i].chunks;
    }
    for (int round = 0; round < ROUNDS; round++) {
        nap(round % 3 * 1000 * 1000); // so that all, some or none sleep
        post_and_wait(jobs, count);
    }
    return 0;
}
