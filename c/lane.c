// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "lane.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gather.h"
#include "guard.h"
#include "team.h"
#include "waiting.h"

enum {
    // A step of a serving engine takes some ten milliseconds, and its graph tells nobody that it is replayed.
    DEFAULT_LINGER_US = 20000,
    LOOKS_BETWEEN_CLOCKS = 64,
    // A round of fewer rows than this per thread is not worth another thread.
    ROWS_PER_THREAD = 24,
    // Rounds of so many chunks a thread are done in order: of the sizes that the GPU chooses (c/cuda.c), those whose
    // chunks are as large as one may be. In smaller ones all begin at nearly the same time, and would only wait for
    // their turn at the number of the next chunk.
    CHUNKS_IN_ORDER = 4,
    CLOSING_NAP_NS = 50 * 1000,
    COUNTING_NS = 1000 * 1000 * 1000,
    // A launch that did not begin for so long stands behind other work, or was never to use its lane.
    PATIENCE_NS = 1000 * 1000 * 1000,
    NAP_NS = 50 * 1000,
    LONG_NAP_NS = 1000 * 1000,
    ENDING_NAPS = 2000, // of CLOSING_NAP_NS: as long as an exit may wait for a round
};

struct ed_lane {
    struct ed_lane *spare; // the next of those that were closed
    pid_t process;         // that opened it
    struct ed_lane_memory memory;
    const struct ed_table *table;
    int threads;
    bool shared;
    // Of the round; written by the poller before its tickets are out.
    uint32_t seen; // sequence number
    uint32_t rows, chunk_rows, chunks;
    uint64_t chunk_stride;
    bool in_order;
    bool running;
    struct ed_job job;
    _Atomic uint64_t launched; // token of the last launch
    _Atomic bool awake;        // captured
    _Atomic bool leaving, gone;
    int64_t begun; // ns
    _Atomic uint64_t unreadable, rounds, served, busy_ns;
    _Atomic int64_t unreadable_ids[ED_LANE_UNREADABLE]; // and 1 more; 0 where one is just being noted
    _Atomic uint32_t stall_one_in, stall_us, stall_count;
    // The chunk to begin with next, where they are done in order; on lines of its own, since all write it.
    _Alignas(128) _Atomic uint32_t next;
};

static _Atomic(struct ed_lane *) lanes[ED_LANES];
static _Atomic int captured;        // lanes whose launches were captured
static _Atomic int64_t awake_until; // ns
static _Atomic int linger_us = DEFAULT_LINGER_US;
static _Atomic uint32_t signals; // futex
static _Atomic bool asleep;
static _Atomic pid_t poller;   // the process that has one
static _Atomic int ranks = -1; // file
static _Atomic int rank_bytes;
static _Atomic int processes = 1;
static _Atomic bool ending, ended; // the process, and the poller for it
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
// Closed lanes are used again and never freed: a thread that launches while the process ends may still look at one.
static struct ed_lane *spare;

static void note_unreadable(void *context, uint64_t position)
{
    struct ed_lane *lane = context;
    const uint64_t n = atomic_fetch_add(&lane->unreadable, 1);
    if (n < ED_LANE_UNREADABLE)
        atomic_store(&lane->unreadable_ids[n], lane->memory.ids[position] + 1ll);
}

// The place that ticket `ticket` stands for, which is also its chunk where chunks are not done in order. Threads begin
// in ranges of tickets of their own, and the GPU takes chunks in the order of their numbers: so the first tickets of
// all ranges are the first places.
static uint32_t place_of(const struct ed_lane *lane, uint32_t ticket)
{
    const struct ed_job *job = &lane->job;
    const uint64_t cells = job->cells;
    uint64_t cell = ((uint64_t)ticket * cells + cells - 1) / job->chunks;
    while (ed_job_first_chunk(job, cell) > ticket)
        cell--;
    while (cell + 1 < cells && ed_job_first_chunk(job, cell + 1) <= ticket)
        cell++;
    const uint64_t first = ed_job_first_chunk(job, cell), turn = ticket - first, whole = job->chunks / cells;
    // Ranges have `whole` tickets or one more; in the last turn only the longer ones before this one count.
    return (uint32_t)(turn < whole ? turn * cells + cell : whole * cells + (first - cell * whole));
}

static void stall(struct ed_lane *lane)
{
    const uint32_t one_in = atomic_load_explicit(&lane->stall_one_in, memory_order_relaxed);
    if (one_in == 0 || atomic_fetch_add(&lane->stall_count, 1) % one_in)
        return;
    const uint32_t us = atomic_load(&lane->stall_us);
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L}, NULL);
}

static void do_chunk(void *context, uint64_t ticket)
{
    struct ed_lane *lane = context;
    const uint32_t place = place_of(lane, (uint32_t)ticket);
    const uint32_t chunk = lane->in_order ? atomic_fetch_add_explicit(&lane->next, 1, memory_order_relaxed) : place;
    const uint32_t begin = chunk * lane->chunk_rows;
    const uint32_t end = begin + lane->chunk_rows < lane->rows ? begin + lane->chunk_rows : lane->rows;
    uint8_t *out = lane->memory.staging + place * lane->chunk_stride;
    stall(lane);
    // Ids were checked by the GPU; should one be none all the same, its row is zeros. Rows are stored into the caches,
    // whatever the size of the round: past them it takes longer (docs/performance.md).
    const struct ed_range range = {lane->table, lane->memory.ids, ED_INVALID_ZERO, begin, end, out};
    ed_gather_range(&range, note_unreadable, lane);
    __atomic_store_n(&lane->memory.flags[(uint64_t)chunk * ED_LANE_FLAG_STRIDE], ED_LANE_FLAG(lane->seen, place),
                     __ATOMIC_RELEASE);
}

// How many locks of other processes there are on bytes [begin, end) of a file.
static int count_locks(int fd, off_t begin, off_t end)
{
    // The kernel tells of any one of them, not of the first: the others are on either side of it.
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = begin, .l_len = end - begin};
    if (begin >= end || fcntl(fd, F_GETLK, &lock) || lock.l_type == F_UNLCK)
        return 0;
    const off_t after = lock.l_len ? lock.l_start + lock.l_len : end;
    return 1 + count_locks(fd, begin, lock.l_start) + count_locks(fd, after, end);
}

static void count_processes(void)
{
    const int fd = atomic_load(&ranks);
    atomic_store(&processes, 1 + (fd < 0 ? 0 : count_locks(fd, 0, atomic_load(&rank_bytes))));
}

static int threads_of(const struct ed_lane *lane)
{
    const int threads =
        lane->shared ? lane->threads / atomic_load_explicit(&processes, memory_order_relaxed) : lane->threads;
    return threads < 1 ? 1 : threads;
}

static void begin(struct ed_lane *lane, uint64_t message)
{
    const uint64_t row_bytes = lane->table->row_bytes;
    lane->seen = ED_LANE_SEQUENCE(message);
    lane->rows = ED_LANE_ROWS(message);
    lane->chunk_rows = ED_LANE_CHUNK_ROWS(message);
    // What the GPU wrote decides where this process stores to: checked like anything from outside.
    if (lane->chunk_rows == 0 || lane->rows == 0 || lane->rows > lane->memory.rows)
        return;
    lane->chunks = (lane->rows + lane->chunk_rows - 1) / lane->chunk_rows;
    lane->chunk_stride = (lane->chunk_rows * row_bytes + ED_LANE_ALIGN - 1) / ED_LANE_ALIGN * ED_LANE_ALIGN;
    const uint64_t last_rows = lane->rows - (lane->chunks - 1) * lane->chunk_rows;
    if (lane->chunks > lane->memory.chunks || lane->chunks > ED_MAX_CHUNKS ||
        (lane->chunks - 1) * lane->chunk_stride + last_rows * row_bytes > lane->memory.staging_bytes)
        return;
    lane->begun = ed_now_ns();
    atomic_fetch_add_explicit(&lane->rounds, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&lane->served, lane->rows, memory_order_relaxed);
    ed_table_count(lane->table, lane->rows);
    ed_guard_prepare();
    const uint32_t worth = lane->rows / ROWS_PER_THREAD;
    const uint32_t threads = (uint32_t)threads_of(lane);
    int helpers = (int)(worth < threads ? worth : threads) - 1;
    helpers = helpers < (int)lane->chunks ? helpers : (int)lane->chunks - 1;
    // In order, any place may get a whole chunk, the last one, too.
    lane->in_order = lane->chunks >= CHUNKS_IN_ORDER * (uint64_t)(helpers + 1) &&
                     lane->chunks * lane->chunk_stride <= lane->memory.staging_bytes;
    atomic_store_explicit(&lane->next, 0, memory_order_relaxed);
    // Those who are kept awake for it, and not others, who would have to be called first.
    lane->job = (struct ed_job){.run = do_chunk, .context = lane, .chunks = lane->chunks, .among = threads - 1};
    ed_team_post(&lane->job, helpers);
    lane->running = true;
}

static int most_threads(void)
{
    int most = 0;
    for (unsigned i = 0; i < ED_LANES; i++) {
        const struct ed_lane *lane = atomic_load(&lanes[i]);
        most = lane && threads_of(lane) > most ? threads_of(lane) : most;
    }
    return most;
}

// Rounds are about to come. The poller, which sees it, keeps the workers of the lanes awake.
static void stay_awake(int64_t now)
{
    atomic_store(&awake_until, now + atomic_load_explicit(&linger_us, memory_order_relaxed) * 1000LL);
}

static void finish(struct ed_lane *lane)
{
    ed_team_wait(&lane->job);
    lane->running = false;
    const int64_t now = ed_now_ns();
    atomic_fetch_add_explicit(&lane->busy_ns, (uint64_t)(now - lane->begun), memory_order_relaxed);
    __atomic_store_n(lane->memory.finished, lane->seen, __ATOMIC_RELEASE);
    stay_awake(now); // a replay tells nobody that it is about to come, but after one there are others
}

enum look { NOTHING, WAITING, DONE };

// Look at a lane once, and do a chunk of it; tell whether there was anything, or only others that are not done yet.
static enum look serve(unsigned place)
{
    struct ed_lane *lane = atomic_load_explicit(&lanes[place], memory_order_acquire);
    if (!lane)
        return NOTHING;
    if (!lane->running) {
        const uint64_t message = __atomic_load_n(lane->memory.message, __ATOMIC_ACQUIRE);
        if (ED_LANE_SEQUENCE(message) != lane->seen) {
            begin(lane, message);
        } else if (atomic_load_explicit(&lane->leaving, memory_order_relaxed)) {
            atomic_store(&lanes[place], NULL);
            atomic_store(&lane->gone, true);
            return NOTHING; // it is somebody else's from here on
        }
    }
    if (!lane->running)
        return NOTHING;
    // A round that was too small to be put up is done in one go.
    if (lane->job.slot >= 0) {
        if (ed_team_help(&lane->job))
            return DONE;
        if (!ed_team_done(&lane->job))
            return WAITING;
    }
    finish(lane);
    return DONE;
}

// Whether a launch is on its way through its stream.
static bool is_launch_outstanding(int64_t now)
{
    for (unsigned i = 0; i < ED_LANES; i++) {
        const struct ed_lane *lane = atomic_load(&lanes[i]);
        const uint64_t launched = lane ? atomic_load(&lane->launched) : 0;
        if (launched && launched != __atomic_load_n(lane->memory.begun, __ATOMIC_RELAXED) &&
            now < atomic_load(&awake_until) + PATIENCE_NS)
            return true;
    }
    return false;
}

// Sleep for a moment, or until somebody expects a round. Never for long while there are lanes: rounds come that nobody
// could tell of.
static void doze(int64_t idle_ns)
{
    const uint32_t seen = atomic_load(&signals);
    const struct timespec nap = {.tv_nsec = idle_ns < PATIENCE_NS ? NAP_NS : LONG_NAP_NS};
    atomic_store(&asleep, true);
    if (ed_now_ns() >= atomic_load(&awake_until) && !atomic_load(&ending))
        syscall(SYS_futex, &signals, FUTEX_WAIT_PRIVATE, seen, most_threads() ? &nap : NULL, NULL, 0);
    atomic_store(&asleep, false);
}

static void *poll_lanes(void *unused)
{
    int64_t counted = 0;
    for (unsigned looks = 1;; looks++) {
        enum look found = NOTHING;
        for (unsigned i = 0; i < ED_LANES; i++) {
            const enum look look = serve(i);
            found = look > found ? look : found;
        }
        if (found == DONE)
            continue;
        if (found == NOTHING && atomic_load_explicit(&ending, memory_order_relaxed))
            break;
        ed_relax();
        if (looks % LOOKS_BETWEEN_CLOCKS)
            continue;
        sched_yield(); // whoever else wants this CPU has better use for it, a worker in mid-chunk above all
        if (found == WAITING)
            continue;
        const int64_t now = ed_now_ns(), idle = now - atomic_load(&awake_until);
        if (now - counted > COUNTING_NS) {
            count_processes();
            counted = now;
        }
        if (idle < 0) // somebody expects a round, with the workers asleep, it may be
            ed_team_stay_awake(atomic_load(&awake_until), most_threads() - 1);
        if (atomic_load_explicit(&captured, memory_order_relaxed) == 0 && idle >= 0 && !is_launch_outstanding(now))
            doze(idle);
    }
    atomic_store(&ended, true);
    return unused;
}

static void wake_up(void)
{
    if (!atomic_load(&asleep))
        return;
    atomic_fetch_add(&signals, 1);
    syscall(SYS_futex, &signals, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void ed_lane_expect(struct ed_lane *lane, uint64_t token)
{
    if (token)
        atomic_store(&lane->launched, token);
    stay_awake(ed_now_ns());
    wake_up();
}

void ed_lane_keep_awake(struct ed_lane *lane)
{
    if (!atomic_exchange(&lane->awake, true))
        atomic_fetch_add(&captured, 1);
    wake_up();
}

// However a process ends, the driver's memory goes in handlers that were registered before this one.
static void end_poller(void)
{
    if (atomic_load(&poller) != getpid())
        return;
    atomic_store(&ending, true);
    for (int naps = 0; naps < ENDING_NAPS && !atomic_load(&ended); naps++) {
        wake_up();
        nanosleep(&(struct timespec){.tv_nsec = CLOSING_NAP_NS}, NULL);
    }
}

static bool start_poller(void)
{
    static bool registered;
    if (atomic_load(&poller) == getpid())
        return true;
    registered = registered || atexit(end_poller) == 0;
    if (!ed_team_start_thread(poll_lanes, NULL, "engramdax-lanes"))
        return false;
    atomic_store(&poller, getpid());
    return true;
}

struct ed_lane *ed_lane_open(const struct ed_lane_memory *memory, const struct ed_table *table, int threads,
                             bool shared)
{
    pthread_mutex_lock(&opening);
    unsigned place = 0;
    while (place < ED_LANES && atomic_load(&lanes[place]))
        place++;
    struct ed_lane *lane = NULL;
    if (place < ED_LANES && start_poller()) {
        lane = spare;
        if (lane)
            spare = lane->spare;
        else
            lane = aligned_alloc(_Alignof(struct ed_lane), sizeof *lane);
    }
    if (lane) {
        memset(lane, 0, sizeof *lane);
        lane->process = getpid();
        lane->memory = *memory;
        lane->table = table;
        lane->threads = threads < 1 ? 1 : threads;
        lane->shared = shared;
        lane->seen = ED_LANE_SEQUENCE(__atomic_load_n(memory->message, __ATOMIC_ACQUIRE));
        atomic_store(&lanes[place], lane);
    }
    pthread_mutex_unlock(&opening);
    if (lane)
        ed_lane_expect(lane, 0);
    return lane;
}

void ed_lane_close(struct ed_lane *lane)
{
    if (lane->process != getpid())
        return; // of the process that this one was forked from: neither thread nor GPU are its own
    if (atomic_exchange(&lane->awake, false))
        atomic_fetch_sub(&captured, 1);
    atomic_store(&lane->leaving, true);
    while (!atomic_load(&lane->gone)) {
        ed_lane_expect(lane, 0);
        nanosleep(&(struct timespec){.tv_nsec = CLOSING_NAP_NS}, NULL);
    }
    pthread_mutex_lock(&opening);
    lane->spare = spare;
    spare = lane;
    pthread_mutex_unlock(&opening);
}

bool ed_lane_troubled(const struct ed_lane *lane)
{
    return atomic_load_explicit(&lane->unreadable, memory_order_relaxed) != 0;
}

uint64_t ed_lane_unreadable(struct ed_lane *lane, int64_t *ids)
{
    if (!ed_lane_troubled(lane))
        return 0;
    const uint64_t count = atomic_exchange(&lane->unreadable, 0);
    for (uint64_t i = 0; i < count && i < ED_LANE_UNREADABLE; i++)
        ids[i] = atomic_exchange(&lane->unreadable_ids[i], 0) - 1;
    return count;
}

void ed_lane_served(const struct ed_lane *lane, struct ed_lane_served *ret)
{
    *ret = (struct ed_lane_served){atomic_load(&lane->rounds), atomic_load(&lane->served), atomic_load(&lane->busy_ns)};
}

void ed_lane_disturb(struct ed_lane *lane, uint32_t one_in, uint32_t microseconds)
{
    atomic_store(&lane->stall_us, microseconds);
    atomic_store(&lane->stall_one_in, one_in);
}

void ed_lanes_share(int fd, int bytes)
{
    atomic_store(&rank_bytes, bytes);
    atomic_store(&ranks, fd);
    count_processes();
}

int ed_lanes_processes(void)
{
    return atomic_load(&processes);
}

void ed_lanes_configure(int linger)
{
    atomic_store(&linger_us, linger < 0 ? DEFAULT_LINGER_US : linger);
}

// The child has neither the poller nor the GPU's memory that its parent's lanes lie in.
static void forget_after_fork(void)
{
    for (unsigned i = 0; i < ED_LANES; i++)
        atomic_store(&lanes[i], NULL);
    spare = NULL;
    atomic_store(&captured, 0);
    atomic_store(&awake_until, 0);
    atomic_store(&asleep, false);
    atomic_store(&ending, false);
    atomic_store(&ended, false);
    atomic_store(&poller, 0);
    atomic_store(&ranks, -1); // POSIX locks are not inherited
    atomic_store(&processes, 1);
    pthread_mutex_init(&opening, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}
