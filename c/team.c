// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SLOTS = 64,
    // Two wake two each, and so on: the caller pays for two wake-ups, not for all.
    WOKEN_AT_ONCE = 2,
    SPINS_BETWEEN_CLOCKS = 32,
    DEFAULT_SPIN_US = 100,
    // A worker that was descheduled in mid-chunk may wait for the very CPU that its caller spins on.
    SPINS_BEFORE_YIELD = 2000,
    // Yielding lets no other thread run where the caller is of a real-time class: it has to sleep.
    SPINS_BEFORE_SLEEP = SPINS_BEFORE_YIELD + 1000,
    SLEEP_NS = 50 * 1000,
};

// A slot's word: chunks of its job in the high half, the next one to take in the low half. Whoever adds one to it
// and finds the former value below the number of chunks has that chunk, of whatever job the slot then holds: its
// fields stay until the chunk is done. So a worker that was slow to look takes a ticket of a later job and no harm
// is done; it may only be one helper more than that job asked for.
typedef uint64_t ticket;
#define NEXT(t) ((uint32_t)(t))
#define CHUNKS(t) ((uint32_t)((t) >> 32))

struct slot {
    _Alignas(128) _Atomic ticket word;
    // Written before the word that opens them to claims, and left alone until all claimed chunks are done.
    ed_chunk_function run;
    void *context;
    // Apart from the word: claims and completions would pull one line to and fro.
    _Alignas(128) _Atomic uint32_t done;
    _Alignas(128) _Atomic int seats; // helpers that the job still wants
};

static struct slot slots[SLOTS];
static _Atomic uint64_t taken;   // slots that have an owner
static _Atomic uint64_t posted;  // slots that workers look at
static _Atomic uint32_t signals; // futex: counts wake-ups
static _Atomic int sleepers;
static _Atomic int workers;
static _Atomic uint32_t forks; // how many forks lie between the first process and this one
static _Atomic int configured_limit;
static _Atomic int system_limit;
static _Atomic int spin_us = DEFAULT_SPIN_US;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Take a ticket of the slot's present job; false where there is none left.
static bool claim(struct slot *slot, uint64_t *chunk)
{
    // One atomic addition, not a compare-and-swap: sixteen threads that begin at once would each fail many times.
    // Looked at first, because idle workers come by without end.
    ticket t = atomic_load_explicit(&slot->word, memory_order_relaxed);
    if (NEXT(t) >= CHUNKS(t))
        return false;
    t = atomic_fetch_add_explicit(&slot->word, 1, memory_order_acquire);
    *chunk = NEXT(t);
    return NEXT(t) < CHUNKS(t);
}

// Take one of the places for helpers of the slot's job.
static bool take_seat(struct slot *slot)
{
    return atomic_load_explicit(&slot->seats, memory_order_relaxed) > 0 &&
           atomic_fetch_sub_explicit(&slot->seats, 1, memory_order_relaxed) > 0;
}

static bool claimable_in(struct slot *slot)
{
    const ticket t = atomic_load(&slot->word);
    return NEXT(t) < CHUNKS(t) && atomic_load(&slot->seats) > 0;
}

static void finish(struct slot *slot)
{
    atomic_fetch_add_explicit(&slot->done, 1, memory_order_release);
}

static void wake(int count)
{
    if (count <= 0 || atomic_load(&sleepers) == 0)
        return;
    atomic_fetch_add(&signals, 1);
    syscall(SYS_futex, &signals, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

// Help every posted job as long as it has chunks; tell whether there were any.
static bool help(unsigned first)
{
    bool helped = false;
    uint64_t open = atomic_load_explicit(&posted, memory_order_acquire);
    for (unsigned i = 0; i < SLOTS && open; i++) {
        const unsigned s = (first + i) % SLOTS;
        if (!(open >> s & 1))
            continue;
        struct slot *slot = &slots[s];
        uint64_t chunk;
        if (!claimable_in(slot) || !take_seat(slot))
            continue;
        if (claimable_in(slot))
            wake(WOKEN_AT_ONCE);
        while (claim(slot, &chunk)) {
            slot->run(slot->context, chunk);
            finish(slot);
            helped = true;
        }
    }
    return helped;
}

static bool claimable(void)
{
    for (uint64_t open = atomic_load(&posted); open; open &= open - 1) {
        if (claimable_in(&slots[__builtin_ctzll(open)]))
            return true;
    }
    return false;
}

static void *work(void *argument)
{
    const unsigned first = (unsigned)(uintptr_t)argument * 7; // begin at different jobs
    int64_t idle_since = now_ns();
    for (unsigned spins = 0;;) {
        if (help(first)) {
            idle_since = now_ns();
            continue;
        }
        relax();
        if (++spins % SPINS_BETWEEN_CLOCKS)
            continue;
        if (now_ns() - idle_since < atomic_load_explicit(&spin_us, memory_order_relaxed) * 1000LL)
            continue;
        const uint32_t seen = atomic_load(&signals);
        atomic_fetch_add(&sleepers, 1);
        if (!claimable())
            syscall(SYS_futex, &signals, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_fetch_sub(&sleepers, 1);
        idle_since = now_ns();
    }
    return NULL;
}

bool ed_team_forked(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed) != 0;
}

// The CPUs of the process, which a thread that pinned itself shares with none of the others: those of its main
// thread, whose id is the process's.
static bool process_cpus(cpu_set_t *set)
{
    return sched_getaffinity(getpid(), sizeof *set, set) == 0;
}

static int read_system_limit(void)
{
    cpu_set_t set;
    int cpus = process_cpus(&set) ? CPU_COUNT(&set) : 1;
    // cgroup v2, as a container sees its own: "max 100000", or a quota and a period in microseconds.
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    long quota, period;
    if (file) {
        if (fscanf(file, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0) {
            const int whole = (int)((quota + period - 1) / period);
            cpus = whole < cpus ? whole : cpus;
        }
        fclose(file);
    }
    return cpus < 1 ? 1 : cpus > ED_MAX_WORKERS ? ED_MAX_WORKERS : cpus;
}

int ed_team_limit(void)
{
    const int configured = atomic_load_explicit(&configured_limit, memory_order_relaxed);
    if (configured)
        return configured;
    int limit = atomic_load_explicit(&system_limit, memory_order_relaxed);
    if (limit == 0) {
        limit = read_system_limit();
        atomic_store_explicit(&system_limit, limit, memory_order_relaxed);
    }
    return limit;
}

void ed_team_configure(int limit, int spin)
{
    atomic_store(&configured_limit, limit < 0 ? 0 : limit > ED_MAX_WORKERS ? ED_MAX_WORKERS : limit);
    if (spin >= 0)
        atomic_store(&spin_us, spin);
}

static void start_workers(int wanted)
{
    if (atomic_load_explicit(&workers, memory_order_relaxed) >= wanted || pthread_mutex_trylock(&starting))
        return;
    // Signals are for the program's own threads, but for those that a fault raises in the thread itself, whatever
    // the mask of the caller: a fault whose signal is blocked ends the process.
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    cpu_set_t set;
    if (process_cpus(&set))
        pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
    while (atomic_load(&workers) < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, work, (void *)(uintptr_t)atomic_load(&workers)))
            break; // a limit on threads: those there are, and the callers, do it
        pthread_setname_np(thread, "engramdax");
        atomic_fetch_add(&workers, 1);
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&starting);
}

static int take_slot(void)
{
    uint64_t before = atomic_load(&taken);
    while (~before) {
        const int slot = __builtin_ctzll(~before);
        if (atomic_compare_exchange_weak(&taken, &before, before | 1ull << slot))
            return slot;
    }
    return -1;
}

void ed_team_post(struct ed_job *job, int helpers)
{
    job->slot = -1;
    job->forks = atomic_load_explicit(&forks, memory_order_relaxed);
    const int most = ed_team_limit() - 1;
    helpers = helpers < most ? helpers : most;
    if (helpers <= 0 || job->chunks == 0)
        return;
    job->slot = take_slot();
    if (job->slot < 0)
        return; // as many jobs at once as there are places: enough work for everybody
    start_workers(helpers);
    struct slot *slot = &slots[job->slot];
    slot->run = job->run;
    slot->context = job->context;
    atomic_store_explicit(&slot->done, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->seats, helpers, memory_order_relaxed);
    atomic_store_explicit(&slot->word, (ticket)job->chunks << 32, memory_order_release);
    atomic_fetch_or(&posted, 1ull << job->slot);
    wake(helpers < WOKEN_AT_ONCE ? helpers : WOKEN_AT_ONCE);
}

// Whether nobody but its owner can do anything of the job: it was never put up, or in a process that this one
// was forked from (chunks that the parent's workers had taken then are done by nobody here).
static bool alone(const struct ed_job *job)
{
    return job->slot < 0 || job->forks != atomic_load_explicit(&forks, memory_order_relaxed);
}

bool ed_team_done(const struct ed_job *job)
{
    if (alone(job))
        return job->chunks == 0;
    return atomic_load_explicit(&slots[job->slot].done, memory_order_acquire) == job->chunks;
}

// Take the tickets that are left, do their chunks or only count them as done, and wait for the others.
static void end(struct ed_job *job, bool run)
{
    if (alone(job)) {
        job->slot = -1;
        for (uint64_t chunk = 0; run && chunk < job->chunks; chunk++)
            job->run(job->context, chunk);
        return;
    }
    struct slot *slot = &slots[job->slot];
    uint64_t chunk;
    while (claim(slot, &chunk)) {
        if (run)
            job->run(job->context, chunk);
        finish(slot);
    }
    for (unsigned spins = 0; !ed_team_done(job); spins++) {
        if (spins < SPINS_BEFORE_YIELD)
            relax();
        else if (spins < SPINS_BEFORE_SLEEP)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    atomic_fetch_and(&posted, ~(1ull << job->slot));
    atomic_fetch_and(&taken, ~(1ull << job->slot));
    job->slot = -1;
}

void ed_team_wait(struct ed_job *job)
{
    end(job, true);
}

void ed_team_drop(struct ed_job *job)
{
    end(job, false);
}

// The child has none of the threads, and the jobs of other threads are nobody's there.
static void forget_after_fork(void)
{
    atomic_fetch_add(&forks, 1);
    atomic_store(&posted, 0);
    atomic_store(&taken, 0);
    atomic_store(&sleepers, 0);
    atomic_store(&workers, 0);
    atomic_store(&system_limit, 0);
    pthread_mutex_init(&starting, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}
