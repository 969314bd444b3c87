// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

_Thread_local struct ed_guard *volatile ed_armed_guard;

// The handlers that were there before ours: when it was first installed, and when it was last put in front
// of a newer one. Written under the mutex; read by the handler, which may run in
// any thread meanwhile, through an index that is switched only after the entry is whole.
static struct sigaction original;
static struct sigaction previous[2];
static _Atomic int current;
static bool installed;
// A newer handler may in turn pass on to ours, which it found when it was installed.
static _Thread_local volatile sig_atomic_t passing __attribute__((tls_model("initial-exec")));
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t advisories;

static void pass_on(int signal, siginfo_t *info, void *context)
{
    const struct sigaction *other = passing ? &original : &previous[atomic_load(&current)];
    if (other->sa_flags & SA_SIGINFO) {
        passing++;
        other->sa_sigaction(signal, info, context);
        passing--;
        return;
    }
    if (other->sa_handler == SIG_IGN && info->si_code <= 0)
        return; // somebody sent it; a fault that is ignored would only repeat, and the kernel kills for that
    if (other->sa_handler != SIG_DFL && other->sa_handler != SIG_IGN) {
        passing++;
        other->sa_handler(signal);
        passing--;
        return;
    }
    struct sigaction fallback = {.sa_handler = SIG_DFL};
    sigaction(signal, &fallback, NULL);
    // A fault repeats when the handler returns. A signal that was sent does not.
    if (info->si_code <= 0)
        raise(signal);
}

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
    // Memory that went bad where nobody reads now: whoever reads it later faults then.
    if (info->si_code == BUS_MCEERR_AO) {
        atomic_fetch_add(&advisories, 1);
        return;
    }
    struct ed_guard *guard = ed_armed_guard;
    const uint8_t *address = info->si_addr;
    if (guard && info->si_code > 0 && address >= guard->begin && address < guard->end) {
        ed_armed_guard = 0;
        siglongjmp(guard->back, 1);
    }
    pass_on(signal, info, context);
}

void ed_guard_prepare(void)
{
    passing = 0; // the other handler may have left by a jump
    struct sigaction seen;
    if (sigaction(SIGBUS, NULL, &seen) == 0 && (seen.sa_flags & SA_SIGINFO) && seen.sa_sigaction == on_sigbus)
        return;
    pthread_mutex_lock(&installing);
    sigaction(SIGBUS, NULL, &seen);
    if (!(seen.sa_flags & SA_SIGINFO) || seen.sa_sigaction != on_sigbus) {
        const int other = 1 - atomic_load(&current);
        previous[other] = seen;
        if (!installed)
            original = seen;
        installed = true;
        atomic_store(&current, other);
        struct sigaction ours = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        sigaction(SIGBUS, &ours, NULL);
    }
    pthread_mutex_unlock(&installing);
}

uint64_t ed_guard_advisories(void)
{
    return atomic_load(&advisories);
}

static void unlock_after_fork(void)
{
    pthread_mutex_init(&installing, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, unlock_after_fork);
}
