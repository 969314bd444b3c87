// SPDX-License-Identifier: Apache-2.0
// A worker that looks at a job's slot before the job is put up, and takes a place after, may be at one that is another
// worker's there. The other one is called all the same. Compiled with a team that calls ed_test_stop() at three points.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <time.h>

#include "stress.h"
#include "team.h"
#include "waiting.h"

enum { WORKERS = 2, NAP_NS = 20 * 1000, SECONDS = 20, LOOKED = 1, TOOK, PUT_UP };

static _Atomic int stopped, open_until; // points
static _Atomic bool armed;
static _Atomic uint32_t begun;

void ed_test_stop(int point, unsigned slot);

static void nap(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void wait_until(_Atomic int *number, int value)
{
    for (const int64_t begin = ed_now_ns(); atomic_load(number) < value; nap(NAP_NS))
        check(ed_now_ns() - begin < SECONDS * 1000000000LL, "a thread was never let go");
}

// Of slot 1, the worker stops where it has looked and where it has taken a place; the caller, where the job is put up,
// lets it go from the first to the second.
void ed_test_stop(int point, unsigned slot)
{
    if (slot != 1 || !atomic_load(&armed))
        return;
    if (point == PUT_UP) {
        if (atomic_load(&stopped) < LOOKED)
            return;
        atomic_store(&open_until, LOOKED);
        wait_until(&stopped, TOOK);
    } else if (point == atomic_load(&stopped) + 1) {
        atomic_store(&stopped, point);
        wait_until(&open_until, point);
    }
}

static void work(void *context, uint64_t chunk)
{
    (void)chunk;
    const uint32_t wanted = context ? *(const uint32_t *)context : 0;
    atomic_fetch_add(&begun, 1);
    for (const int64_t begin = ed_now_ns(); wanted && atomic_load(&begun) < wanted; nap(NAP_NS))
        check(ed_now_ns() - begin < SECONDS * 1000000000LL, "a job had no worker while one slept");
}

static struct ed_job job_for(int helpers, uint32_t *wanted)
{
    return (struct ed_job){.run = work, .context = wanted, .chunks = (uint32_t)helpers};
}

static void end(struct ed_job *job)
{
    while (!ed_team_done(job))
        nap(NAP_NS);
    ed_team_wait(job);
}

int main(void)
{
    uint32_t both = WORKERS;
    ed_team_configure(1 + WORKERS, 0);
    struct ed_job all = job_for(WORKERS, &both), first = job_for(1, NULL), small = job_for(1, NULL),
                  large = job_for(WORKERS, &both);
    ed_team_post(&all, WORKERS); // starts them
    end(&all);
    ed_team_post(&first, 1); // has slot 0 until all are called for the last one
    while (!ed_team_done(&first))
        nap(NAP_NS);
    ed_team_post(&small, 1); // in slot 1, at whose first place is the second worker
    end(&small);
    nap(10 * 1000 * 1000); // both sleep, or a look more does no harm
    small = job_for(1, NULL);
    atomic_store(&armed, true);
    ed_team_post(&small, 1);
    wait_until(&stopped, LOOKED);
    ed_team_wait(&small);
    atomic_store(&begun, 0);
    ed_team_post(&large, WORKERS); // in slot 1, at whose first place is the first worker
    ed_team_wait(&first);
    atomic_store(&open_until, PUT_UP);
    end(&large);
    return 0;
}
