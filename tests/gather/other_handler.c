// SPDX-License-Identifier: Apache-2.0
// Another library with a SIGBUS handler of its own, for the tests of chained handlers: it guards reads of one
// range, as engramdax does, by a jump out of its handler.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint8_t *own_begin, *own_end;
static struct sigaction before;
static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t armed;
static volatile sig_atomic_t own_faults, passed, sent;

static void handler(int signal, siginfo_t *info, void *context)
{
    uint8_t *address = info->si_addr;
    if (info->si_code <= 0)
        sent++;
    if (info->si_code > 0 && armed && address >= own_begin && address < own_end) {
        own_faults++;
        siglongjmp(back, 1);
    }
    passed++;
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    } else if (info->si_code > 0) {
        struct sigaction fallback = {.sa_handler = SIG_DFL};
        sigaction(signal, &fallback, NULL);
    }
}

// Put the handler in front, once more if another is there now. Without SA_NODEFER, as most are.
int other_install(void)
{
    struct sigaction seen, ours = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigfillset(&ours.sa_mask);
    sigaction(SIGBUS, NULL, &seen);
    if (seen.sa_flags & SA_SIGINFO && seen.sa_sigaction == handler)
        return 0;
    if (!before.sa_sigaction)
        before = seen;
    return sigaction(SIGBUS, &ours, NULL) ? -1 : 1;
}

// Read a byte of its own range; -1 where that faults.
int other_read(uint8_t *begin, uint8_t *end, volatile uint8_t *address)
{
    own_begin = begin;
    own_end = end;
    if (sigsetjmp(back, 1)) {
        armed = 0;
        return -1;
    }
    armed = 1;
    const int value = *address;
    armed = 0;
    return value;
}

int other_own_faults(void)
{
    return own_faults;
}

int other_passed(void)
{
    return passed;
}

int other_sent(void)
{
    return sent;
}

// Send SIGBUS with this code to the calling thread of this process, as the kernel does for BUS_MCEERR_AO.
int send_sigbus(int code, void *address)
{
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = SIGBUS;
    info.si_code = code;
    info.si_addr = address;
    return (int)syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGBUS, &info);
}
