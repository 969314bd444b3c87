// SPDX-License-Identifier: Apache-2.0
// Gather on the CPU: scattered rows of tables, each request's into one buffer, by the team of this process.
//
// An id of -1 gives a row of zeros; so does any other id that is no row, under ED_INVALID_ZERO. Otherwise the
// lowest position of a bad id is reported, and what its `out` holds is undefined. Rows whose memory cannot be
// read (see guard.h) are zeros and reported; all other rows of the call are right.
#ifndef ENGRAMDAX_GATHER_H
#define ENGRAMDAX_GATHER_H

#include <stdint.h>

#include "hash.h"
#include "kernel.h"
#include "team.h"

// A token with more heads than this cannot be hashed and gathered in one go.
enum { ED_IDS_AT_ONCE = 4096 };

// Tokens in place of ids: position i of the request is head i % heads of token i / heads.
struct ed_token_source {
    const struct ed_hasher *hasher;
    const struct ed_token_batch *batch; // its history was checked by ed_check_history()
    uint32_t layer;
};

struct ed_request {
    const struct ed_table *table;
    const void *ids;                      // or NULL, and
    const struct ed_token_source *tokens; // ids are hashed, a chunk at a time, by whoever gathers them
    uint64_t count;
    uint8_t *out; // [count * row_bytes]
    int flags;
    int threads; // for ed_gather_prepared()
};

enum ed_outcome {
    ED_DONE = 0,
    ED_BAD_ID = 1,
    ED_UNREADABLE = 2,
    ED_OVERLAP = 3,   // of ids and out; nothing was done
    ED_BAD_TOKEN = 4, // position is the token's
    ED_NO_MEMORY = 5, // for the call's own notes; what `out` holds is undefined
};

// What went wrong in a call that did not end in ED_DONE.
struct ed_failure {
    uint64_t request;  // ED_BAD_ID: which of the call's has it,
    uint64_t position; // and at which position
    // ED_UNREADABLE: a bit per position, lowest bit first, those of all requests one after the other.
    // ed_failure_clear() frees it.
    uint8_t *unreadable;
};

enum { ED_MAX_REQUESTS = 1 << 16 };

enum ed_engine {
    ED_TEAM = 0,
    ED_OPENMP = 1, // the paper's routine: OpenMP threads, memcpy per row, equal parts; not guarded
};

// Do `requests[0 .. count)`, up to ED_MAX_REQUESTS, together with at most `threads` threads (0: as many as the
// work is worth). Gives an ed_outcome; for all but ED_DONE ed_failure() of the same thread has more. May be called from
// several threads at once.
int ed_gather(const struct ed_request *requests, uint64_t count, int threads, int engine);

// The same for one request that says itself how many threads it may have.
int ed_gather_prepared(const struct ed_request *request);

// The same for one request without a struct.
int ed_gather_one(const struct ed_table *table, const void *ids, uint64_t count, int flags, uint8_t *out, int threads,
                  int engine);

// This thread's last failure; overwritten by its next one.
const struct ed_failure *ed_failure(void);
void ed_failure_clear(void);

// Copy the rows of one range, on this thread, which called ed_guard_prepare(). Rows that cannot be read are zeros, and
// `unreadable` is called with their positions. Gives ED_ALL_VALID or the lowest position of a bad id.
typedef void (*ed_unreadable)(void *context, uint64_t position);
int64_t ed_gather_range(const struct ed_range *range, ed_unreadable unreadable, void *context);

// A request that runs while its caller does something else. The buffers stay the request's until
// ed_pending_wait() or ed_pending_drop() has returned, of which exactly one must be called, once, by any
// thread; it frees the handle. ed_pending_wait() reports as ed_gather() does; ed_pending_drop() leaves undone
// what nobody has begun, and all of it in a process forked meanwhile. Gives NULL without memory.
struct ed_pending;
struct ed_pending *ed_gather_start(const struct ed_request *request, int threads);
int ed_pending_done(const struct ed_pending *pending);
int ed_pending_wait(struct ed_pending *pending);
void ed_pending_drop(struct ed_pending *pending);

// Measure which distance of prefetching serves this table best on one thread, with `samples` random rows and
// scratch memory for them; a few milliseconds. `*nanoseconds` gets the time per row at that distance.
int ed_gather_calibrate(const struct ed_table *table, uint64_t samples, double *nanoseconds);

// One thread, one kernel, no team, no guard: what the others are measured against. Gives ED_ALL_VALID, the
// position of a bad id, or ED_NO_KERNEL.
int64_t ed_gather_bare(const struct ed_table *table, const void *ids, uint64_t count, int flags, uint8_t *out,
                       const char *kernel);

#endif
