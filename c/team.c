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

#include "waiting.h"

enum {
    SLOTS = 64,
    // So many of them stay posted. All would cost an idle worker two lines each, at each look, after one crowd of jobs:
    // 0.3 us before it sees the next one.
    KEPT_POSTED = 8,
    CELLS = ED_MAX_THREADS,
    // Two call two each, and so on: the caller pays for two wake-ups, not for all.
    CALLED_AT_ONCE = 2,
    SPINS_BETWEEN_CLOCKS = 32,
    DEFAULT_SPIN_US = 100,
    // How often an awake worker looks at a job before it takes the place of another that does not come.
    PATIENCE = 256,
    // A worker that was descheduled in mid-chunk may wait for the very CPU that its caller spins on.
    SPINS_BEFORE_YIELD = 2000,
    // Yielding lets no other thread run where the caller is of a real-time class: it has to sleep.
    SPINS_BEFORE_SLEEP = SPINS_BEFORE_YIELD + 1000,
    SLEEP_NS = 50 * 1000,
    LEAD_OF_ONE = 1 << 16, // as leads are kept
};

// A job's news of a thread: by what part of the mean time it was done sooner. At most MOST_NEWS of it counts, since a
// thread may have been interrupted, and the thread's part grows by GAIN times that.
static const float GAIN = 0.125f, MOST_NEWS = 0.25f;
// With them, a thread has from a quarter of an equal part to about two.
static const float LEAST_LEAD = -0.75f, MOST_LEAD = 1.0f;

// A cell's word: the end of its range of chunks in the high half, the next one to take in the low half. Whoever adds
// one to it and finds the former low half below the high one has that chunk, of whatever job the slot then holds: its
// fields stay until the chunk is done. So a worker that was slow to look takes a ticket of a later job and no harm
// is done; it may only be one helper more than that job asked for.
typedef uint64_t ticket;
#define NEXT(t) ((uint32_t)(t))
#define END(t) ((uint32_t)((t) >> 32))

// The part of a job that one thread begins with, on lines of its own (128 bytes: they are fetched in pairs): threads
// that all took tickets from one word would wait for each other's turn at its line, which costs sixteen of them as
// much as the rows of a token. Those who are done with theirs take from the others'.
struct cell {
    _Alignas(128) _Atomic ticket word;
    _Atomic uint32_t done;  // chunks of this cell that are done
    _Atomic uint32_t ended; // ns, low half: when its chunk was done, where each thread has one
    _Atomic uint32_t taken; // whether a worker has begun with this cell
};

struct slot {
    // Written before the words that open them to claims, and left alone until all claimed chunks are done. Where the
    // next job has the same they are not written: workers keep the line.
    _Alignas(128) ed_chunk_function run;
    _Atomic(void *) context;
    _Atomic uint32_t cells; // of the job; the first is the caller's
    _Atomic uint32_t among; // workers that may have the others
    _Atomic bool one_each;  // whether the caller is at work, too, and each thread has one chunk at most
    _Atomic bool displaced; // whether a worker took a place that is another's
    uint32_t forks;         // the process whose jobs its cells are of; only looked at by owners
    struct cell cell[CELLS];
};

static struct slot slots[SLOTS];
// Slots that workers look at, of the first KEPT_POSTED all that ever had a job: on a line that is hardly ever written,
// since all of them read it without end. They see a job by the cell that is theirs, which is the one line of a job that
// each has to wait for. A place that nobody had taken when its job ended is taken later by its worker, who finds no
// chunk there.
static _Alignas(128) _Atomic uint64_t posted;
static _Alignas(128) _Atomic uint64_t taken; // slots that have an owner; written twice in each call
static _Alignas(128) _Atomic int workers;    // that were started
// What each worker sleeps on: a futex that counts the calls to it, on a line of its own.
static struct {
    _Alignas(64) _Atomic uint32_t calls;
    _Atomic bool busy; // in a job
} beds[ED_MAX_WORKERS];
static _Atomic uint64_t sleeping[(ED_MAX_WORKERS + 63) / 64]; // a bit each; who calls one takes it
static _Atomic uint32_t forks; // how many forks lie between the first process and this one
static _Atomic int configured_limit;
static _Atomic int system_limit;
static _Atomic int spin_us = DEFAULT_SPIN_US;
static _Atomic int64_t awake_until; // ns: until then the first so many workers spin
static _Atomic uint32_t awake_workers;
static _Alignas(128) _Atomic int64_t used; // ns: when there was last work to share; written in each call
// By how much more than an equal part of a divided job each cell's thread does in the same time, in LEAD_OF_ONE.
static _Alignas(128) _Atomic int32_t leads[CELLS];
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

// Take a chunk of a cell; false where there is none left.
static bool claim(struct cell *cell, uint32_t *chunk)
{
    // Looked at first: an addition takes the line away from its owner, and idle workers come by without end.
    ticket t = atomic_load_explicit(&cell->word, memory_order_relaxed);
    if (NEXT(t) >= END(t))
        return false;
    t = atomic_fetch_add_explicit(&cell->word, 1, memory_order_acquire);
    *chunk = NEXT(t);
    return NEXT(t) < END(t);
}

// Do the chunks that are left of a cell, or only count them as done.
static void work_off(struct slot *slot, struct cell *cell, bool run)
{
    uint32_t chunk;
    while (claim(cell, &chunk)) {
        if (run)
            slot->run(atomic_load_explicit(&slot->context, memory_order_relaxed), chunk);
        // Only learn() wants to know, of divided jobs, which are such; and each look at the clock takes time.
        if (atomic_load_explicit(&slot->one_each, memory_order_relaxed))
            atomic_store_explicit(&cell->ended, (uint32_t)ed_now_ns(), memory_order_relaxed);
        atomic_fetch_add_explicit(&cell->done, 1, memory_order_release);
    }
}

static bool take(struct cell *cell)
{
    return !atomic_load_explicit(&cell->taken, memory_order_relaxed) &&
           !atomic_exchange_explicit(&cell->taken, 1, memory_order_acquire);
}

// Tell whether the job has chunks and a place that nobody has taken, or take such a place.
static bool find_place(struct slot *slot, bool take_it, uint32_t *place)
{
    const uint32_t cells = atomic_load_explicit(&slot->cells, memory_order_relaxed);
    bool left = false, found = false;
    for (uint32_t i = 0; i < cells && !(left && found); i++) {
        const ticket t = atomic_load_explicit(&slot->cell[i].word, memory_order_relaxed);
        left = left || NEXT(t) < END(t);
        if (i > 0 && !found && !atomic_load_explicit(&slot->cell[i].taken, memory_order_relaxed)) {
            found = true;
            *place = i;
        }
    }
    return left && found && (!take_it || take(&slot->cell[*place]));
}

// Call a worker that sleeps; false for one that does not. Only those are called who are wanted: one more that spins for
// nothing takes a core from a thread that works.
static bool call(uint32_t worker)
{
    _Atomic uint64_t *bits = &sleeping[worker / 64];
    const uint64_t bit = 1ull << worker % 64;
    if (!(atomic_load(bits) & bit) || !(atomic_fetch_and(bits, ~bit) & bit))
        return false;
    atomic_fetch_add(&beds[worker].calls, 1);
    syscall(SYS_futex, &beds[worker].calls, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return true;
}

// A job's workers: those from `first` on, of the first `among`, as many as it has places for them. Always the same for
// jobs of a size in this slot, so that they find the lines of the last one in their caches; others in other slots, so
// that jobs side by side go to different workers as long as there are any.
struct ring {
    uint32_t first, among, cells;
};

static struct ring ring_of(unsigned s)
{
    const uint32_t cells = atomic_load_explicit(&slots[s].cells, memory_order_relaxed);
    const uint32_t among = atomic_load_explicit(&slots[s].among, memory_order_relaxed);
    return (struct ring){among ? s * (cells - 1) % among : 0, among, cells};
}

// Whether the slot's job still has that ring.
static bool is_current(const struct ring *ring, unsigned s)
{
    return ring->cells == atomic_load_explicit(&slots[s].cells, memory_order_relaxed) &&
           ring->among == atomic_load_explicit(&slots[s].among, memory_order_relaxed);
}

// The place of a worker, 0 for none.
static uint32_t place_of(const struct ring *ring, uint32_t worker)
{
    if (worker >= ring->among)
        return 0;
    const uint32_t place = 1 + (worker + ring->among - ring->first) % ring->among;
    return place < ring->cells ? place : 0;
}

// Whose place it is; of places up to `among`.
static uint32_t worker_at(const struct ring *ring, uint32_t place)
{
    return (place - 1 + ring->first) % ring->among;
}

static bool is_taken(unsigned s, uint32_t place)
{
    return atomic_load_explicit(&slots[s].cell[place].taken, memory_order_relaxed);
}

// Whether there may be a job: of a slot without one, the cells are left alone.
static bool has_owner(unsigned s)
{
    return atomic_load_explicit(&taken, memory_order_relaxed) >> s & 1;
}

// The slots in which there may be a job.
static uint64_t owned_slots(void)
{
    return atomic_load(&posted) & atomic_load(&taken);
}

static bool anybody_sleeps(void)
{
    uint64_t any = 0;
    for (unsigned i = 0; i < sizeof sleeping / sizeof *sleeping; i++)
        any |= atomic_load(&sleeping[i]);
    return any != 0;
}

static bool sleeps(uint32_t worker)
{
    return atomic_load(&sleeping[worker / 64]) >> worker % 64 & 1;
}

// Call one of the first `among` workers who sleeps, who then takes any place that he finds.
static bool call_one_of(uint32_t among)
{
    for (uint32_t i = 0; i * 64 < among; i++)
        // Of those whom somebody else called meanwhile, the next one.
        for (uint64_t some = atomic_load(&sleeping[i]); some; some &= some - 1) {
            const uint32_t worker = i * 64 + (uint32_t)__builtin_ctzll(some);
            if (worker < among && call(worker))
                return true;
        }
    return false;
}

// Call some of those who have a place in a job and sleep, and others for those who are busy with another job; gives how
// many were called.
static int call_helpers(unsigned s)
{
    const struct ring ring = ring_of(s);
    const bool all_at_own_places = atomic_load(&taken) == 1ull << s && !atomic_load(&slots[s].displaced);
    int called = 0;
    for (uint32_t place = 1; place < ring.cells && place <= ring.among && called < CALLED_AT_ONCE; place++) {
        const uint32_t worker = worker_at(&ring, place);
        // The place is looked at last: its line is in the cache of who works there.
        if (sleeps(worker))
            called += !is_taken(s, place) && call(worker);
        else if (!all_at_own_places && atomic_load(&beds[worker].busy))
            called += !is_taken(s, place) && call_one_of(ring.among);
    }
    return called;
}

// Call some for each job, as everybody does who begins with one: those who were called for it may have gone to another,
// where they call the rest for both, and for their own places.
static void call_for_all(void)
{
    for (uint64_t owned = owned_slots(); owned; owned &= owned - 1)
        call_helpers((unsigned)__builtin_ctzll(owned));
}

// Whether a worker is to spin though there is nothing to do.
static bool is_kept_awake(uint32_t self, int64_t now)
{
    return self < atomic_load_explicit(&awake_workers, memory_order_relaxed) &&
           now < atomic_load_explicit(&awake_until, memory_order_relaxed);
}

// Call some of those who are to stay awake and sleep; they call the others.
static void call_kept_awake(void)
{
    const uint32_t count = atomic_load_explicit(&awake_workers, memory_order_relaxed);
    int called = 0;
    if (!anybody_sleeps())
        return;
    for (uint32_t i = 0; i < count && called < CALLED_AT_ONCE; i++)
        called += call(i);
}

// Do the chunks of a cell, then what is left of others. Not so where each had only one and all are awake: then the
// others' threads have begun with theirs or are about to, and each look takes the line of one away from it. The job's
// caller does what nobody comes for. What is left of this cell tells nothing of that: others may have done its chunks
// before their own.
static void work_off_from(struct slot *slot, uint32_t place, bool own)
{
    const uint32_t cells = atomic_load_explicit(&slot->cells, memory_order_relaxed);
    const bool one_each = atomic_load_explicit(&slot->one_each, memory_order_relaxed);
    const bool only_this = own && one_each && !anybody_sleeps();
    for (uint32_t c = 0; c < (only_this ? 1 : cells); c++)
        work_off(slot, &slot->cell[(place + c) % cells], true);
}

// Help the posted jobs as long as they have chunks and places; tell whether there were any. Who is not `patient` also
// takes places that are not his.
static bool help(uint32_t self, bool patient)
{
    bool helped = false;
    const uint64_t all = atomic_load_explicit(&posted, memory_order_acquire);
    const unsigned first = self * 7 % SLOTS; // begin at different jobs
    for (uint64_t turned = all >> first | all << (SLOTS - first) % SLOTS; turned; turned &= turned - 1) {
        const unsigned s = ((unsigned)__builtin_ctzll(turned) + first) % SLOTS;
        struct slot *slot = &slots[s];
        const struct ring ring = ring_of(s);
        uint32_t place = place_of(&ring, self);
        if (place && !is_taken(s, place)) {
            // The lines of the work come from the caller's cache: on their way while the place is taken.
            const char *context = atomic_load_explicit(&slot->context, memory_order_relaxed);
            __builtin_prefetch(context);
            __builtin_prefetch(context + 64);
        }
        bool own = place && take(&slot->cell[place]);
        if (!own && (patient || !has_owner(s) || !find_place(slot, true, &place)))
            continue;
        // Another job may have come since the slot was looked at, where the place is another worker's.
        own = own && is_current(&ring, s);
        // His own may become free only now: a job is put up place by place.
        if (!own)
            atomic_store(&slot->displaced, true);
        atomic_store(&beds[self].busy, true);
        if (anybody_sleeps())
            call_for_all();
        work_off_from(slot, place, own);
        atomic_store_explicit(&beds[self].busy, false, memory_order_release);
        helped = true;
    }
    return helped;
}

static bool claimable(void)
{
    for (uint64_t owned = owned_slots(); owned; owned &= owned - 1) {
        uint32_t place;
        if (find_place(&slots[__builtin_ctzll(owned)], false, &place))
            return true;
    }
    return false;
}

static void *work(void *argument)
{
    const uint32_t self = (uint32_t)(uintptr_t)argument, word = self / 64;
    const uint64_t bit = 1ull << self % 64;
    atomic_store(&beds[self].busy, false); // it may have been in a process that this one was forked from
    int64_t idle_since = ed_now_ns();
    unsigned looks = 0; // since it last helped or slept
    for (;;) {
        if (help(self, looks % PATIENCE != 0)) {
            idle_since = ed_now_ns();
            looks = 0;
        }
        ed_relax();
        if (++looks % SPINS_BETWEEN_CLOCKS)
            continue;
        const int64_t now = ed_now_ns();
        if (now - idle_since < atomic_load_explicit(&spin_us, memory_order_relaxed) * 1000LL)
            continue;
        if (is_kept_awake(self, now)) {
            sched_yield(); // whoever else wants this CPU has better use for it
            continue;
        }
        const uint32_t seen = atomic_load(&beds[self].calls);
        atomic_fetch_or(&sleeping[word], bit);
        // As in call_sleepers(): who posts a job now sees that this one sleeps, or this one sees the job.
        atomic_thread_fence(memory_order_seq_cst);
        if (!claimable())
            syscall(SYS_futex, &beds[self].calls, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_fetch_and(&sleeping[word], ~bit);
        if (is_kept_awake(self, ed_now_ns()))
            call_kept_awake();
        idle_since = ed_now_ns();
        looks = 0;
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

bool ed_team_use(void)
{
    const int64_t now = ed_now_ns(), last = atomic_load_explicit(&used, memory_order_relaxed);
    atomic_store_explicit(&used, now, memory_order_relaxed);
    return now - last < atomic_load_explicit(&spin_us, memory_order_relaxed) * 1000LL;
}

bool ed_team_start_thread(void *(*body)(void *), void *argument, const char *name)
{
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
    pthread_t thread;
    const bool started = pthread_create(&thread, &attributes, body, argument) == 0;
    if (started)
        pthread_setname_np(thread, name);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void start_workers(int wanted)
{
    if (atomic_load_explicit(&workers, memory_order_relaxed) >= wanted || pthread_mutex_trylock(&starting))
        return;
    // A limit on threads: those there are, and the callers, do it.
    while (atomic_load(&workers) < wanted &&
           ed_team_start_thread(work, (void *)(uintptr_t)atomic_load(&workers), "engramdax"))
        atomic_fetch_add(&workers, 1);
    pthread_mutex_unlock(&starting);
}

void ed_team_stay_awake(int64_t until, int count)
{
    const int most = ed_team_limit() - 1;
    count = count < most ? count : most;
    if (count <= 0)
        return;
    start_workers(count);
    // Idle workers look at both without end: not written, and so not taken from their caches, where nothing is new.
    if (atomic_load_explicit(&awake_workers, memory_order_relaxed) != (uint32_t)count)
        atomic_store_explicit(&awake_workers, (uint32_t)count, memory_order_relaxed);
    if (atomic_load_explicit(&awake_until, memory_order_relaxed) != until)
        atomic_store(&awake_until, until);
    call_kept_awake();
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

void ed_team_divide(uint32_t threads, uint16_t units, uint16_t *begins)
{
    uint32_t parts[CELLS], all = 0;
    for (uint32_t i = 0; i < threads; i++)
        all += parts[i] = (uint32_t)(LEAD_OF_ONE + atomic_load_explicit(&leads[i], memory_order_relaxed));
    uint64_t before = 0;
    for (uint32_t i = 0; i < threads; i++) {
        // Rounded to the nearest. Rounded down, a tiny lead would do for the first thread to get none of few units, and
        // the last one two.
        begins[i] = (uint16_t)((before * units + all / 2) / all);
        before += parts[i];
    }
    begins[threads] = units;
}

// See which threads were done with their part of a divided job sooner than others.
static void learn(const struct ed_job *job, const struct slot *slot)
{
    if (job->chunks != job->cells)
        return; // put up for fewer threads than it was divided for
    float took[CELLS], all = 0, parts[CELLS], sum = 0;
    for (uint32_t i = 0; i < job->cells; i++) {
        const uint32_t ended = atomic_load_explicit(&slot->cell[i].ended, memory_order_relaxed);
        all += took[i] = (float)(ended - (uint32_t)job->begun);
    }
    if (all == 0)
        return; // by a clock that does not tell
    const float mean = all / (float)job->cells;
    for (uint32_t i = 0; i < job->cells; i++) {
        float news = (mean - took[i]) / mean;
        news = news < -MOST_NEWS ? -MOST_NEWS : news > MOST_NEWS ? MOST_NEWS : news;
        const float part = 1 + (float)atomic_load_explicit(&leads[i], memory_order_relaxed) / LEAD_OF_ONE;
        sum += parts[i] = part * (1 + GAIN * news);
    }
    for (uint32_t i = 0; i < job->cells; i++) {
        float lead = parts[i] * (float)job->cells / sum - 1;
        lead = lead < LEAST_LEAD ? LEAST_LEAD : lead > MOST_LEAD ? MOST_LEAD : lead;
        atomic_store_explicit(&leads[i], (int32_t)(lead * LEAD_OF_ONE), memory_order_relaxed);
    }
}

// Leave no chunk of a parent's job in a slot: a job is seen cell by cell, and a worker who came to a cell before it is
// written would do that chunk for this one. Not done in the handler of forks, since other threads of the parent put
// jobs up while its memory is copied.
static void empty_after_fork(struct slot *slot, uint32_t now)
{
    if (slot->forks == now)
        return;
    for (uint32_t i = 0; i < CELLS; i++)
        atomic_store_explicit(&slot->cell[i].word, 0, memory_order_relaxed);
    slot->forks = now;
}

// Write what workers have to know of a job into its slot.
static void describe(struct slot *slot, const struct ed_job *job, uint32_t among, bool attended)
{
    if (slot->run != job->run)
        slot->run = job->run;
    if (atomic_load_explicit(&slot->context, memory_order_relaxed) != job->context)
        atomic_store_explicit(&slot->context, job->context, memory_order_relaxed);
    if (atomic_load_explicit(&slot->cells, memory_order_relaxed) != job->cells)
        atomic_store_explicit(&slot->cells, job->cells, memory_order_relaxed);
    if (atomic_load_explicit(&slot->among, memory_order_relaxed) != among)
        atomic_store_explicit(&slot->among, among, memory_order_relaxed);
    const bool one_each = attended && job->chunks <= job->cells;
    if (atomic_load_explicit(&slot->one_each, memory_order_relaxed) != one_each)
        atomic_store_explicit(&slot->one_each, one_each, memory_order_relaxed);
    if (atomic_load_explicit(&slot->displaced, memory_order_relaxed))
        atomic_store_explicit(&slot->displaced, false, memory_order_relaxed);
}

// Put a job up; false where nobody can help. Who sleeps is not called. `attended`: whether the caller is at work at it,
// too, from now on.
static bool put_up(struct ed_job *job, int helpers, bool attended)
{
    job->slot = -1;
    job->cells = 1;
    job->forks = atomic_load_explicit(&forks, memory_order_relaxed);
    const int most = ed_team_limit() - 1;
    helpers = helpers < most ? helpers : most;
    if (helpers <= 0 || job->chunks == 0)
        return false;
    job->slot = take_slot();
    if (job->slot < 0)
        return false; // as many jobs at once as there are places: enough work for everybody
    start_workers(helpers);
    struct slot *slot = &slots[job->slot];
    empty_after_fork(slot, job->forks);
    const uint32_t cells = 1 + (uint32_t)(helpers < CELLS ? helpers : CELLS - 1);
    const uint32_t started = (uint32_t)atomic_load_explicit(&workers, memory_order_relaxed);
    const uint32_t among = job->among && job->among < started ? job->among : started;
    job->cells = cells;
    if (job->divided)
        job->begun = ed_now_ns();
    describe(slot, job, among, attended);
    for (uint32_t i = 0; i < cells; i++) {
        struct cell *cell = &slot->cell[i];
        const ticket begin = ed_job_first_chunk(job, i), end = ed_job_first_chunk(job, i + 1);
        atomic_store_explicit(&cell->done, 0, memory_order_relaxed);
        atomic_store_explicit(&cell->word, end << 32 | begin, memory_order_release);
        // Last: who takes the place before there are chunks finds none and never comes back to it.
        atomic_store_explicit(&cell->taken, 0, memory_order_release);
    }
    if (!(atomic_load_explicit(&posted, memory_order_relaxed) >> job->slot & 1))
        atomic_fetch_or(&posted, 1ull << job->slot);
    return true;
}

// Call helpers of a job that was put up. Whoever goes to sleep meanwhile sees the job, or is seen here to sleep.
static void call_sleepers(const struct ed_job *job)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (anybody_sleeps())
        call_helpers((unsigned)job->slot);
}

void ed_team_post(struct ed_job *job, int helpers)
{
    if (put_up(job, helpers, false))
        call_sleepers(job);
}

// Whether nobody but its owner can do anything of the job: it was never put up, or in a process that this one
// was forked from (chunks that the parent's workers had taken then are done by nobody here).
static bool alone(const struct ed_job *job)
{
    return job->slot < 0 || job->forks != atomic_load_explicit(&forks, memory_order_relaxed);
}

bool ed_team_help(struct ed_job *job)
{
    if (alone(job))
        return false;
    struct slot *slot = &slots[job->slot];
    for (uint32_t i = 0; i < job->cells; i++) {
        uint32_t chunk;
        if (!claim(&slot->cell[i], &chunk))
            continue;
        job->run(job->context, chunk);
        atomic_fetch_add_explicit(&slot->cell[i].done, 1, memory_order_release);
        return true;
    }
    return false;
}

bool ed_team_done(const struct ed_job *job)
{
    if (alone(job))
        return job->chunks == 0;
    const struct slot *slot = &slots[job->slot];
    const uint32_t cells = atomic_load_explicit(&slot->cells, memory_order_relaxed);
    uint32_t done = 0;
    for (uint32_t i = 0; i < cells; i++)
        done += atomic_load_explicit(&slot->cell[i].done, memory_order_acquire);
    return done == job->chunks;
}

static bool is_done(const struct ed_job *job, const struct slot *slot, uint32_t cell)
{
    const uint64_t chunks = ed_job_first_chunk(job, cell + 1) - ed_job_first_chunk(job, cell);
    return atomic_load_explicit(&slot->cell[cell].done, memory_order_acquire) == chunks;
}

// Have the lines of these cells on their way here, to be read.
static void fetch_cells(const struct slot *slot, uint64_t cells)
{
    for (; cells; cells &= cells - 1)
        __builtin_prefetch(&slot->cell[__builtin_ctzll(cells)]);
}

// Wait for the cells that are left. Each is looked at in each turn, so that those that were done meanwhile travel
// together.
static void wait_for_cells(const struct ed_job *job, const struct slot *slot, uint64_t left)
{
    for (unsigned spins = 0;; spins++) {
        for (uint64_t some = left; some; some &= some - 1) {
            const uint32_t cell = (uint32_t)__builtin_ctzll(some);
            left &= ~((uint64_t)is_done(job, slot, cell) << cell);
        }
        if (!left)
            return;
        if (spins < SPINS_BEFORE_YIELD)
            ed_relax();
        else if (spins < SPINS_BEFORE_SLEEP)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
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
    // The others' lines lie in their caches, and several travel at once; but not before the own part is done: each look
    // takes one away from a thread that may be at work.
    work_off(slot, &slot->cell[0], run);
    uint64_t left = (2ull << (job->cells - 1)) - 1; // cells that are not known to be done
    fetch_cells(slot, left);
    for (uint32_t i = 0; i < job->cells; i++) {
        work_off(slot, &slot->cell[i], run);
        if (is_done(job, slot, i))
            left &= ~(1ull << i);
    }
    wait_for_cells(job, slot, left);
    if (job->divided && run)
        learn(job, slot);
    if (job->slot >= KEPT_POSTED)
        atomic_fetch_and(&posted, ~(1ull << job->slot));
    atomic_fetch_and(&taken, ~(1ull << job->slot));
    job->slot = -1;
}

void ed_team_wait(struct ed_job *job)
{
    end(job, true);
}

void ed_team_run(struct ed_job *job, int helpers)
{
    // Those who sleep already are called at once, and call the rest. Where there are none, those who went to sleep
    // meanwhile are looked for when the own part is done: for the fence the caller would wait until the last worker's
    // cell is written.
    if (put_up(job, helpers, true) && !(anybody_sleeps() && call_helpers((unsigned)job->slot))) {
        struct slot *slot = &slots[job->slot];
        work_off(slot, &slot->cell[0], true);
        call_sleepers(job);
    }
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
    for (unsigned i = 0; i < sizeof sleeping / sizeof *sleeping; i++)
        atomic_store(&sleeping[i], 0);
    atomic_store(&workers, 0);
    atomic_store(&system_limit, 0);
    pthread_mutex_init(&starting, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}
