// SPDX-License-Identifier: Apache-2.0
// The body of the kernels, included by kernel.c once for each instruction set with
//   KERNEL            the name of the kernel
//   VECTOR            bytes of a vector
//   COPY_VECTOR(t, f) copy one vector, unaligned
// No include guard: each inclusion makes another kernel.

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define LOCAL(name) JOIN(KERNEL, name)

// `bytes` is a constant in the calls that matter, and all of this folds into straight moves.
static inline __attribute__((always_inline)) void LOCAL(_copy)(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (bytes < VECTOR) {
        copy_small(to, from, bytes);
        return;
    }
    uint64_t at = 0;
    for (; at + VECTOR <= bytes; at += VECTOR)
        COPY_VECTOR(to + at, from + at);
    const uint64_t left = bytes - at;
    if (left == 8)
        memcpy(to + at, from + at, 8); // a V4.1 row ends in its eight scales
    else if (left)
        COPY_VECTOR(to + bytes - VECTOR, from + bytes - VECTOR); // over what was copied already
}

// A row of no id is zeros.
static void LOCAL(_copy_spans)(uint8_t *out, const struct ed_table *t, int64_t row)
{
    for (uint64_t s = 0; s < t->span_count; s++) {
        const struct ed_span *span = &t->spans[s];
        if (row < 0)
            memset(out, 0, span->bytes);
        else
            LOCAL(_copy)(out, t->base + span->offset + (uint64_t)row * span->stride, span->bytes);
        out += span->bytes;
    }
}

// `bytes` of a row that lies in one piece; 0 for rows in several.
static inline __attribute__((always_inline)) int64_t LOCAL(_rows)(const struct ed_range *r, uint64_t bytes)
{
    const struct ed_table *t = r->table;
    const uint8_t *base = t->base + t->spans[0].offset;
    const uint64_t stride = t->spans[0].stride, ahead = t->rows_ahead, row_bytes = bytes ? bytes : t->row_bytes;
    fetch_ids(r, ahead + 1);
    int64_t rows[ED_MAX_AHEAD + 1]; // what the positions from the present one on ask for
    uint8_t *out = r->out;
    int64_t bad = ED_ALL_VALID;
    uint64_t end = r->end, asked = r->begin;
    for (uint64_t i = r->begin; i < end; i++, out += row_bytes) {
        // Each id is read and checked once, as its row is fetched.
        for (; asked < end && asked <= i + ahead; asked++) {
            const int64_t row = row_at(r, asked);
            if (row == ROW_BAD) {
                bad = (int64_t)asked;
                end = asked; // the rows before it are still copied: their memory may be what the caller wants
                break;
            }
            rows[asked & ED_MAX_AHEAD] = row;
            if (row < 0 || !ahead)
                continue;
            if (bytes)
                fetch(base + (uint64_t)row * stride, bytes);
            else
                fetch_spans(t, row);
        }
        if (i >= end)
            break;
        const int64_t row = rows[i & ED_MAX_AHEAD];
        if (!bytes)
            LOCAL(_copy_spans)(out, t, row);
        else if (row >= 0)
            LOCAL(_copy)(out, base + (uint64_t)row * stride, bytes);
        else
            memset(out, 0, bytes);
    }
    return bad;
}

static int64_t KERNEL(const struct ed_range *r)
{
    if (r->table->span_count != 1)
        return LOCAL(_rows)(r, 0);
    switch (r->table->row_bytes) {
    case 64:
        return LOCAL(_rows)(r, 64);
    case 264: // DeepSeek-V4.1: 256 float8 values and 8 scales
        return LOCAL(_rows)(r, 264);
    case 320: // the paper: 160 bf16 values
        return LOCAL(_rows)(r, 320);
    case 512:
        return LOCAL(_rows)(r, 512);
    default:
        return LOCAL(_rows)(r, r->table->row_bytes);
    }
}

#undef KERNEL
#undef VECTOR
#undef COPY_VECTOR
#undef JOIN2
#undef JOIN
#undef LOCAL
