// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include "media.h"

_Thread_local struct ed_guard *volatile ed_armed_guard;

// The handlers that were there before ours: when it was first installed, and when it was last put in front
// of a newer one. Written under the mutex; read by the handler, which may run in
// any thread meanwhile, through an index that is switched only after the entry is whole.
static struct sigaction original;
static struct sigaction previous[2];
static _Atomic int current;
static bool installed;
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t advisories;

enum { LOOK_AGAIN_NS = 10 * 1000 };
static _Atomic int64_t looked; // when ours was last seen in front

// The signal that this thread last passed on: what it interrupted, and where on the stack ours stood. A newer
// handler may pass it back to ours, which it found when it was installed; that call is to go to the original
// handler. It may also leave by a jump, and then nobody clears this.
struct passed {
    const void *context;
    uintptr_t frame;
};
static _Thread_local struct passed passed __attribute__((tls_model("initial-exec")));
static _Thread_local bool unblocked __attribute__((tls_model("initial-exec")));

// Tell whether this call comes from the handler that a signal was passed on to: for the same signal, which the
// kernel would deliver at the same depth of the stack and a handler passes back from deeper; or because the
// handler raised it anew, as faulthandler does. A fault with a context of its own is a new one.
static bool passed_back(const siginfo_t *info, const void *context, uintptr_t frame)
{
    return passed.context && frame < passed.frame && (context == passed.context || info->si_code <= 0);
}

// Call a handler as the kernel would have.
static void call(const struct sigaction *handler, int signal, siginfo_t *info, void *context)
{
    sigset_t blocked = handler->sa_mask, before;
    if (!(handler->sa_flags & SA_NODEFER))
        sigaddset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    if (handler->sa_flags & SA_SIGINFO)
        handler->sa_sigaction(signal, info, context);
    else
        handler->sa_handler(signal);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void pass_on(int signal, siginfo_t *info, void *context, uintptr_t frame)
{
    const bool back = passed_back(info, context, frame);
    const struct sigaction *other = back ? &original : &previous[atomic_load(&current)];
    if (other->sa_flags & SA_SIGINFO || (other->sa_handler != SIG_DFL && other->sa_handler != SIG_IGN)) {
        const struct passed before = passed;
        if (!back)
            passed = (struct passed){context, frame};
        call(other, signal, info, context);
        passed = before;
        return;
    }
    // Somebody sent it; a fault that is ignored would only repeat, and the kernel kills for that.
    if (other->sa_handler == SIG_IGN && info->si_code <= 0)
        return;
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
        // A newer handler that passed this on has its own signals blocked, SIGBUS among them, and the next
        // fault of this thread would end the process.
        const ucontext_t *interrupted = context;
        pthread_sigmask(SIG_SETMASK, &interrupted->uc_sigmask, NULL);
        siglongjmp(guard->back, 1);
    }
    pass_on(signal, info, context, (uintptr_t)__builtin_frame_address(0));
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void ed_guard_prepare(void)
{
    passed.context = NULL; // the other handler may have left by a jump
    if (!unblocked) {
        // Programs block all signals in threads that are not to handle them; the kernel ends the process
        // for a fault whose signal is blocked.
        sigset_t bus;
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
        unblocked = true;
    }
    const int64_t now = now_ns(), last = atomic_load_explicit(&looked, memory_order_relaxed);
    if (last && now - last < LOOK_AGAIN_NS)
        return;
    struct sigaction seen;
    if (sigaction(SIGBUS, NULL, &seen) == 0 && (seen.sa_flags & SA_SIGINFO) && seen.sa_sigaction == on_sigbus) {
        atomic_store_explicit(&looked, now, memory_order_relaxed);
        return;
    }
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
    atomic_store_explicit(&looked, now, memory_order_relaxed);
    pthread_mutex_unlock(&installing);
}

uint64_t ed_guard_advisories(void)
{
    return atomic_load(&advisories);
}

static void forget_after_fork(void)
{
    pthread_mutex_init(&installing, NULL);
    atomic_store(&looked, 0);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdangling-pointer" // disarmed before the guard goes, whichever way it ends
#endif

int ed_copy_guarded(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *begin, const uint8_t *end)
{
    ed_guard_prepare();
    struct ed_guard guard = {.begin = begin, .end = end};
    if (!ED_GUARD_ARM(&guard))
        return -1;
    memcpy(to, from, bytes);
    ed_guard_disarm();
    return 0;
}

// Whole lines at once as long as they are zero, whatever their alignment.
static uint64_t find_nonzero(const uint8_t *from, uint64_t bytes)
{
    uint64_t at = 0;
    for (uint64_t words[8]; bytes - at >= sizeof words; at += sizeof words) {
        memcpy(words, from + at, sizeof words);
        if (words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7])
            break;
    }
    while (at < bytes && !from[at])
        at++;
    return at;
}

int ed_find_nonzero_guarded(const uint8_t *from, uint64_t bytes, const uint8_t *begin, const uint8_t *end,
                            uint64_t *ret)
{
    ed_guard_prepare();
    struct ed_guard guard = {.begin = begin, .end = end};
    if (!ED_GUARD_ARM(&guard))
        return -1;
    const uint64_t found = find_nonzero(from, bytes);
    ed_guard_disarm();
    *ret = found;
    return 0;
}

int ed_invalidate_guarded(const uint8_t *address, uint64_t length, const uint8_t *begin, const uint8_t *end)
{
    ed_guard_prepare();
    struct ed_guard guard = {.begin = begin, .end = end};
    if (!ED_GUARD_ARM(&guard))
        return -1;
    ed_invalidate(address, length);
    ed_guard_disarm();
    return 0;
}

int ed_store_guarded(uint8_t *target, const uint8_t *source, uint64_t lines, const uint8_t *begin, const uint8_t *end)
{
    ed_guard_prepare();
    struct ed_guard guard = {.begin = begin, .end = end};
    if (!ED_GUARD_ARM(&guard))
        return -1;
    ed_store_lines(target, source, lines);
    ed_guard_disarm();
    return 0;
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
