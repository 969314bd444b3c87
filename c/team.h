// SPDX-License-Identifier: Apache-2.0
// The team: the worker threads of this process, shared by all gathers.
//
// A job is a number of chunks and a function that does one. Its caller puts it up, in equal ranges of chunks, one for
// each thread. Everybody, the caller too, takes chunks by ticket, of the own range first, then of the others' (workers
// not so where each has one chunk and all are awake), and the caller waits until all chunks are done, not until all
// threads are: a worker that was descheduled before it took a ticket holds nobody up, as it would at an OpenMP join.
// Concurrent jobs share the workers. Workers never call into Python or CUDA; they are started when a job first wants
// them, spin for a while after work and then sleep. A forked child starts its own.
#ifndef ENGRAMDAX_TEAM_H
#define ENGRAMDAX_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// Do chunk `chunk` of the job. Called from several threads at once, once for each chunk.
typedef void (*ed_chunk_function)(void *context, uint64_t chunk);

enum {
    ED_MAX_CHUNKS = (1 << 20) - 1,
    ED_MAX_WORKERS = 255,
    // As many as may be in a job: beyond them no more memory bandwidth is to be had.
    ED_MAX_THREADS = 64,
};

struct ed_job {
    // Set by its caller.
    ed_chunk_function run;
    void *context;
    uint32_t chunks; // 1 to ED_MAX_CHUNKS
    uint32_t among;  // the first so many workers are called for it; 0: any
    bool divided;    // whether its chunks are of the sizes that ed_team_divide() gave; for ed_team_run() alone
    // Set by the team.
    int slot;       // where it is put up, -1 where it is not
    uint32_t cells; // ranges of about as many chunks, each of which somebody begins with: ed_job_first_chunk()
    uint32_t forks; // the process that put it up
    int64_t begun;  // ns: when it was put up, if it is divided
};

// The chunk that a cell of a job begins with; past the last cell, the number of chunks.
static inline uint64_t ed_job_first_chunk(const struct ed_job *job, uint64_t cell)
{
    return cell * job->chunks / job->cells;
}

// Put a job up for at most `helpers` workers, 63 at most, and call those that sleep; it stays valid until
// ed_team_wait() or ed_team_drop() returns, of which one must be called. Where no place or no worker is to be had,
// nobody helps and ed_team_wait() does all of it.
void ed_team_post(struct ed_job *job, int helpers);

// Do chunks of the job until none is left, then wait until those of others are done.
void ed_team_wait(struct ed_job *job);

// Post a job and wait for it: for callers who have nothing else to do.
void ed_team_run(struct ed_job *job, int helpers);

// End the job without doing what nobody has begun: wait for the chunks that workers are in.
void ed_team_drop(struct ed_job *job);

// Divide `units` of like work among all `threads` threads of the team, 2 to ED_MAX_THREADS, such that they are done at
// the same time, as far as jobs before tell: chunk i of a job with so many chunks is units [begins[i], begins[i + 1]).
// Cores differ, and one that others use, or whose other hardware thread is at work, may take twice as long.
void ed_team_divide(uint32_t threads, uint16_t units, uint16_t *begins);

// Do one chunk of a posted job that nobody has begun; false where there is none.
bool ed_team_help(struct ed_job *job);

// Tell whether all chunks of a posted job are done, without doing any.
bool ed_team_done(const struct ed_job *job);

// Tell whether this process was forked from one that had this library loaded.
bool ed_team_forked(void);

// How many threads, callers included, may work at once: the CPUs of the main thread's affinity, whoever asks
// first, fewer under a cgroup's CPU quota, or what ed_team_configure() said. Workers have that affinity, too.
int ed_team_limit(void);

// Set the limit (0: as the system says) and how many microseconds an idle worker spins before it sleeps
// (-1: leave it), which is also how long ed_team_use() remembers. Takes effect with the next job.
void ed_team_configure(int limit, int spin_us);

// Note that there is work to share; tell whether there was some less than spin_us ago. Where not, the workers may
// sleep, and calling them takes longer than little work does. Thread-safe.
bool ed_team_use(void);

// Start a detached thread on the CPUs of the main thread's affinity, whatever the caller's own, with all signals
// blocked but those that a fault raises; false where there is none to be had.
bool ed_team_start_thread(void *(*body)(void *), void *argument, const char *name);

// Keep the first `count` workers from sleeping until `until`, in nanoseconds of CLOCK_MONOTONIC; start and call those
// that are missing.
void ed_team_stay_awake(int64_t until, int count);

#endif
