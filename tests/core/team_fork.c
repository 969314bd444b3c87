// SPDX-License-Identifier: Apache-2.0
// Children forked while a job has chunks that nobody has begun do jobs of their own in its place: first one for few
// threads, so that a worker is awake, then one for as many as may be. Usage: team_fork CHILDREN.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stress.h"
#include "team.h"

enum { MOST_CHUNKS = 64, NAP_NS = 500 * 1000, STAY_NS = 20 * 1000 * 1000, SPIN_US = 5000, LEFT = 6400, SECONDS = 20 };

struct work {
    uint32_t chunks;
    _Atomic uint32_t times[MOST_CHUNKS]; // that each chunk was done
};

static _Atomic bool over;

static void nap(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void stay(void *context, uint64_t chunk)
{
    (void)context, (void)chunk;
    while (!atomic_load(&over))
        nap(STAY_NS);
}

static void count(void *context, uint64_t chunk)
{
    struct work *work = context;
    check(chunk < work->chunks, "a chunk that the job does not have");
    atomic_fetch_add(&work->times[chunk], 1);
}

static void do_job(uint32_t chunks)
{
    struct work work = {.chunks = chunks};
    struct ed_job job = {.run = count, .context = &work, .chunks = chunks};
    ed_team_run(&job, (int)chunks - 1);
    for (uint32_t i = 0; i < chunks; i++)
        check(work.times[i] == 1, "how often a chunk was done");
}

static void be_child(void)
{
    alarm(SECONDS);
    do_job(2);
    nap(NAP_NS); // until its worker waits for more
    do_job(MOST_CHUNKS);
    _exit(0);
}

int main(int argc, char **argv)
{
    check(argc == 2, "the usage");
    ed_team_configure(MOST_CHUNKS, SPIN_US);
    struct ed_job job = {.run = stay, .chunks = LEFT};
    ed_team_post(&job, MOST_CHUNKS - 1);
    bool right = true;
    for (int i = atoi(argv[1]); i > 0; i--) {
        const pid_t child = fork();
        check(child >= 0, "a child");
        if (child == 0)
            be_child();
        int status;
        check(waitpid(child, &status, 0) == child, "the wait");
        right &= status == 0;
    }
    atomic_store(&over, true);
    ed_team_drop(&job);
    return !right;
}
