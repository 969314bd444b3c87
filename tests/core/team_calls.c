// SPDX-License-Identifier: Apache-2.0
// How many sleepers the caller of a job calls: linked with --wrap=syscall, and counted in its own thread alone.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdarg.h>
#include <time.h>

#include "stress.h"
#include "team.h"

enum { LIMIT = 16, JOBS = 100, ASLEEP_NS = 1000 * 1000, ARGUMENTS = 6, AT_ONCE = 2 };

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
static _Thread_local int called;

long __wrap_syscall(long number, ...)
{
    long a[ARGUMENTS];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < ARGUMENTS; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    called += a[1] == FUTEX_WAKE_PRIVATE;
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void do_nothing(void *context, uint64_t chunk)
{
    (void)context, (void)chunk;
}

int main(void)
{
    ed_team_configure(LIMIT, 0);
    for (int i = 0; i < JOBS; i++) {
        struct ed_job job = {.run = do_nothing, .chunks = LIMIT};
        nanosleep(&(struct timespec){.tv_nsec = ASLEEP_NS}, NULL);
        called = 0;
        ed_team_run(&job, LIMIT - 1);
        check(called <= AT_ONCE, "a caller called those whom others call");
        nanosleep(&(struct timespec){.tv_nsec = ASLEEP_NS}, NULL);
        ed_team_post(&job, LIMIT - 1);
        while (ed_team_help(&job) || !ed_team_done(&job))
            ;
        called = 0;
        ed_team_wait(&job);
        check(called == 0, "a caller called for a job that was done");
    }
    return 0;
}
