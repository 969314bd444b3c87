// SPDX-License-Identifier: Apache-2.0
// Gather on the CPU: scattered rows of a table, one after the other into one buffer.
#ifndef ENGRAMDAX_GATHER_H
#define ENGRAMDAX_GATHER_H

#include <stdint.h>

// Bytes that a gathered row takes from the table in one piece: those of row r begin at
// base + offset + r * stride. A packed row is one span, two dense arrays are two.
struct ed_span {
    uint64_t offset;
    uint64_t stride;
    uint64_t bytes;
};

struct ed_table {
    const uint8_t *base;          // start of the table's extent
    uint64_t rows;
    uint64_t row_bytes;           // sum of the spans' bytes
    const struct ed_span *spans;
    uint64_t span_count;
    const int64_t *head_begins;   // [head_count + 1], the last equals rows; NULL where heads are unknown
    uint64_t head_count;
};

enum ed_gather_flags {
    ED_IDS_64 = 1,         // ids are int64, else int32
    ED_INVALID_ZERO = 2,   // a bad id gives a zero row instead of an error
    ED_PER_HEAD = 4,       // ids[i] counts within head i % head_count
};

enum { ED_ALL_VALID = -1 };

// Copy rows ids[0 .. count) to out[0 .. count * row_bytes). An id of -1 gives a row of zeros; so does any
// other id that is no row, under ED_INVALID_ZERO. Otherwise the lowest position of a bad id is returned
// and what `out` holds is undefined; ED_ALL_VALID where there is none.
//
// `ids` and `out` have any alignment. `threads` is an upper limit, at least 1. May be called from several
// threads at once; in a child that was forked after a call it runs on the calling thread alone.
int64_t ed_gather(const struct ed_table *table, const void *ids, uint64_t count, int flags, int threads,
                  uint8_t *out);

#endif
