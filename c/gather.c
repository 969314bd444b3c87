// SPDX-License-Identifier: Apache-2.0
#include "gather.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum {
    ROWS_PER_CHUNK = 64,
    // Waking a team costs more than copying this many rows does (16 cores, Xeon, DRAM).
    ROWS_INLINE = 256,
    // The row this far ahead is fetched while the present one is copied: 8-16 is the flat optimum on DRAM.
    ROWS_AHEAD = 12,
    LINE = 64,
};

struct job {
    const struct ed_table *table;
    const void *ids;
    int flags;
    uint8_t *out;
};

enum { ROW_NONE = -1, ROW_BAD = -2 };

// The row that position i asks for, ROW_NONE for a row of zeros, ROW_BAD for an id that is no row.
static inline int64_t row_at(const struct job *job, uint64_t i)
{
    const struct ed_table *t = job->table;
    int64_t id;
    if (job->flags & ED_IDS_64) {
        memcpy(&id, (const uint8_t *)job->ids + i * sizeof id, sizeof id); // ids may stand anywhere
    } else {
        int32_t narrow;
        memcpy(&narrow, (const uint8_t *)job->ids + i * sizeof narrow, sizeof narrow);
        id = narrow;
    }
    if (id == -1)
        return ROW_NONE;
    const int64_t *begins = t->head_begins;
    const uint64_t head = job->flags & ED_PER_HEAD ? i % t->head_count : 0;
    const int64_t first = job->flags & ED_PER_HEAD ? begins[head] : 0;
    const int64_t limit = job->flags & ED_PER_HEAD ? begins[head + 1] - first : (int64_t)t->rows;
    if (id < 0 || id >= limit)
        return job->flags & ED_INVALID_ZERO ? ROW_NONE : ROW_BAD;
    return first + id;
}

static inline void prefetch_row(const struct ed_table *t, int64_t row)
{
    for (uint64_t s = 0; s < t->span_count; s++) {
        const uint8_t *p = t->base + t->spans[s].offset + (uint64_t)row * t->spans[s].stride;
        for (const uint8_t *end = p + t->spans[s].bytes; p < end; p += LINE)
            __builtin_prefetch(p);
        __builtin_prefetch(t->base + t->spans[s].offset + (uint64_t)row * t->spans[s].stride +
                           t->spans[s].bytes - 1);
    }
}

static int64_t gather_range(const struct job *job, uint64_t begin, uint64_t end)
{
    const struct ed_table *t = job->table;
    uint8_t *out = job->out + begin * t->row_bytes;
    for (uint64_t i = begin; i < begin + ROWS_AHEAD && i < end; i++) {
        const int64_t row = row_at(job, i);
        if (row >= 0)
            prefetch_row(t, row);
    }
    for (uint64_t i = begin; i < end; i++, out += t->row_bytes) {
        const int64_t ahead = i + ROWS_AHEAD < end ? row_at(job, i + ROWS_AHEAD) : ROW_NONE;
        if (ahead >= 0)
            prefetch_row(t, ahead);
        const int64_t row = row_at(job, i);
        if (row == ROW_BAD)
            return (int64_t)i;
        if (row == ROW_NONE) {
            memset(out, 0, t->row_bytes);
            continue;
        }
        uint8_t *to = out;
        for (uint64_t s = 0; s < t->span_count; s++) {
            memcpy(to, t->base + t->spans[s].offset + (uint64_t)row * t->spans[s].stride, t->spans[s].bytes);
            to += t->spans[s].bytes;
        }
    }
    return ED_ALL_VALID;
}

// A child inherits libgomp's idea of a team whose threads it does not have, and hangs in its first
// parallel region (seen with GCC 12).
static atomic_bool forked;

static void note_fork(void)
{
    atomic_store(&forked, true);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, note_fork);
}

int64_t ed_gather(const struct ed_table *table, const void *ids, uint64_t count, int flags, int threads,
                  uint8_t *out)
{
    const struct job job = {table, ids, flags, out};
    const uint64_t chunks = (count + ROWS_PER_CHUNK - 1) / ROWS_PER_CHUNK;
    if (threads <= 1 || count <= ROWS_INLINE || atomic_load(&forked))
        return gather_range(&job, 0, count);
    int64_t bad = INT64_MAX;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(min : bad)
    for (uint64_t c = 0; c < chunks; c++) {
        const uint64_t begin = c * ROWS_PER_CHUNK;
        const uint64_t end = begin + ROWS_PER_CHUNK < count ? begin + ROWS_PER_CHUNK : count;
        const int64_t found = gather_range(&job, begin, end);
        if (found != ED_ALL_VALID && found < bad)
            bad = found;
    }
    return bad == INT64_MAX ? ED_ALL_VALID : bad;
}
