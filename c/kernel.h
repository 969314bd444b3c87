// SPDX-License-Identifier: Apache-2.0
// The loop of a gather over a range of positions: ids in, rows out, on one thread.
#ifndef ENGRAMDAX_KERNEL_H
#define ENGRAMDAX_KERNEL_H

#include <stdint.h>

// Bytes that a gathered row takes from the table in one piece: those of row r begin at
// base + offset + r * stride. A packed row is one span, two dense arrays are two.
struct ed_span {
    uint64_t offset;
    uint64_t stride;
    uint64_t bytes;
};

struct ed_table {
    const uint8_t *base;        // start of the table's extent
    const uint8_t *guard_begin; // a fault in here is a row that cannot be read: all of the pool's mapping,
    const uint8_t *guard_end;   // since the kernel may name the page of a fault and not the address
    uint64_t rows;
    uint64_t row_bytes; // sum of the spans' bytes
    const struct ed_span *spans;
    uint64_t span_count;
    const int64_t *head_begins; // [head_count + 1], the last equals rows; NULL where heads are unknown
    uint64_t head_count;
    uint32_t rows_ahead; // how many rows further the prefetch is; 0 for none, at most ED_MAX_AHEAD
    // What others see of the work: each gather adds 1 << ED_CALLS_SHIFT and its rows, modulo 2^64, so that one addition
    // counts both; a difference of two reads is exact while it stays below 2^24 calls and 2^40 rows. NULL for none.
    uint64_t *counter;
};

enum {
    ED_MAX_AHEAD = 511, // a chunk of rows of 64 bytes and more; a power of two less one, since it is a mask, too
    ED_CALLS_SHIFT = 40,
};

static inline void ed_table_count(const struct ed_table *table, uint64_t rows)
{
    if (table->counter)
        __atomic_fetch_add(table->counter, (1ull << ED_CALLS_SHIFT) + rows, __ATOMIC_RELAXED);
}

enum ed_gather_flags {
    ED_IDS_64 = 1,       // ids are int64, else int32
    ED_INVALID_ZERO = 2, // a bad id gives a zero row instead of an error
    ED_PER_HEAD = 4,     // ids[i] counts within head i % head_count
};

enum {
    ED_ALL_VALID = -1,
    ED_NO_KERNEL = -2, // by the name that was given
};

struct ed_range {
    const struct ed_table *table;
    const void *ids; // of the whole request: positions count from its start
    int flags;
    uint64_t begin;
    uint64_t end;
    uint8_t *out; // where the row of position `begin` goes
};

// Copy the rows of positions [begin, end); give the lowest position with a bad id, at which it stopped, or
// ED_ALL_VALID.
typedef int64_t (*ed_kernel)(const struct ed_range *range);

// The kernel for this CPU: the widest vectors that it has. `name` may be "avx512", "avx2", "sse2", "neon" or
// NULL for the best; gives NULL where the CPU or this build lacks it.
ed_kernel ed_kernel_named(const char *name);

// Ask for the beginnings of the first rows of a range, at most `most` of them, and so for their translations.
void ed_fetch_rows(const struct ed_range *range, uint64_t most);

// Copy `bytes` to `out` past the caches, whole lines as far as they go. The caller fences.
void ed_stream(uint8_t *out, const uint8_t *from, uint64_t bytes);

#endif
