// SPDX-License-Identifier: Apache-2.0
// Children forked while a job has places that nobody has taken and chunks that nobody has begun do jobs of their own in
// its slot, each for some more threads than the one before. Usage: team_fork CHILDREN.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stress.h"
#include "team.h"

enum { MOST_CHUNKS = 64, MORE = 4, NAP_NS = 500 * 1000, SPIN_US = 100 * 1000, LEFT = 6400, SECONDS = 20 };

struct work {
    uint32_t chunks;
    _Atomic uint32_t times[MOST_CHUNKS]; // that each chunk was done
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

static void stay(void *context, uint64_t chunk)
{
    (void)context, (void)chunk;
    nap();
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
    ed_team_configure(MOST_CHUNKS, SPIN_US);
    for (uint32_t chunks = 2; chunks <= MOST_CHUNKS; chunks += MORE)
        do_job(chunks);
    _exit(0);
}

int main(int argc, char **argv)
{
    check(argc == 2, "the usage");
    ed_team_configure(MOST_CHUNKS, 0);
    bool right = true;
    for (int i = atoi(argv[1]); i > 0; i--) {
        struct ed_job job = {.run = stay, .chunks = LEFT};
        ed_team_post(&job, MOST_CHUNKS - 1);
        const pid_t child = fork();
        check(child >= 0, "a child");
        if (child == 0)
            be_child();
        ed_team_drop(&job);
        int status;
        check(waitpid(child, &status, 0) == child, "the wait");
        right &= status == 0;
    }
    return !right;
}
