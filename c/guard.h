// SPDX-License-Identifier: Apache-2.0
// Guarded access: a load or store that faults (a poisoned line, an unplugged device, a truncated file: SIGBUS)
// comes back to its own thread as a jump instead of ending the process.
//
// A thread arms a guard around loads and stores of a range, and only around those: nothing between arming and
// disarming may hold a lock or allocate. The handler is installed for the process when the first guard is
// prepared, and put in front again if somebody installed another one meanwhile. Faults outside the armed
// range, or without a guard, go to the handler that was there before; under SIG_DFL they end the process as
// they would have.
#ifndef ENGRAMDAX_GUARD_H
#define ENGRAMDAX_GUARD_H

#include <setjmp.h>
#include <stdint.h>

struct ed_guard {
    sigjmp_buf back;
    const uint8_t *begin;
    const uint8_t *end;
};

// initial-exec: a handler must not find itself allocating the thread's storage.
extern _Thread_local struct ed_guard *volatile ed_armed_guard __attribute__((tls_model("initial-exec")));

// Make sure that the handler is in place, in front of all others, and, once in each thread, that SIGBUS is not
// blocked. Call it before each guarded piece of work.
//
// To look who is in front is a system call, which would be most of a small gather. So a process looks again only
// when it last did more than 10 us ago: programs install handlers once, and seldom between two gathers that follow
// each other so closely. A fault meanwhile goes to the newer handler, which most pass on to ours; the first call
// after a pause always looks.
void ed_guard_prepare(void);

// How many memory errors the kernel reported that nobody had run into (BUS_MCEERR_AO).
uint64_t ed_guard_advisories(void);

// Copy `bytes` of a mapping [begin, end) that may fault; 0, or -1 if it did, and `to` is then undefined.
int ed_copy_guarded(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *begin, const uint8_t *end);

// Find the first of `bytes` of a mapping that is not zero: its index, `bytes` where all are; 0, or -1 if one faulted.
int ed_find_nonzero_guarded(const uint8_t *from, uint64_t bytes, const uint8_t *begin, const uint8_t *end,
                            uint64_t *ret);

// ed_invalidate() (media.h) of a part of a mapping that may fault, for which a flush needs a translation as a load
// does; 0, or -1 if it did.
int ed_invalidate_guarded(const uint8_t *address, uint64_t length, const uint8_t *begin, const uint8_t *end);

// ed_store_lines() (media.h) to a part of a mapping that may fault; 0, or -1 if it did, and some lines may be stored.
int ed_store_guarded(uint8_t *target, const uint8_t *source, uint64_t lines, const uint8_t *begin, const uint8_t *end);

// if (ED_GUARD_ARM(guard)) { loads or stores; ed_guard_disarm(); } else { one faulted, the guard is disarmed }
// The signal mask is not saved: the handler runs with SA_NODEFER and restores what a handler before it changed.
#define ED_GUARD_ARM(guard) (sigsetjmp((guard)->back, 0) == 0 ? (ed_armed_guard = (guard), 1) : 0)

static inline void ed_guard_disarm(void)
{
    ed_armed_guard = 0;
}

#endif
