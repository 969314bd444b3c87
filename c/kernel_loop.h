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

static inline __attribute__((always_inline)) int64_t LOCAL(_packed)(const struct ed_range *r, uint64_t bytes)
{
    const struct ed_table *t = r->table;
    const uint8_t *base = t->base + t->spans[0].offset;
    const uint64_t stride = t->spans[0].stride, ahead = t->rows_ahead;
    const uint8_t *rows[ED_MAX_AHEAD + 1]; // what the positions from the present one on ask for
    uint8_t *out = r->out;
    int64_t bad = ED_ALL_VALID;
    uint64_t end = r->end, asked = r->begin;
    for (uint64_t i = r->begin; i < end; i++, out += bytes) {
        // Each id is read and checked once, as its row is fetched.
        for (; asked < end && asked <= i + ahead; asked++) {
            const int64_t row = row_at(r, asked);
            if (row == ROW_BAD) {
                bad = (int64_t)asked;
                end = asked; // the rows before it are still copied: their memory may be what the caller wants
                break;
            }
            const uint8_t *from = row < 0 ? NULL : base + (uint64_t)row * stride;
            rows[asked & ED_MAX_AHEAD] = from;
            if (from && ahead)
                fetch(from, bytes);
        }
        if (i >= end)
            break;
        const uint8_t *from = rows[i & ED_MAX_AHEAD];
        if (from)
            LOCAL(_copy)(out, from, bytes);
        else
            memset(out, 0, bytes);
    }
    return bad;
}

static int64_t LOCAL(_spans)(const struct ed_range *r)
{
    const struct ed_table *t = r->table;
    uint8_t *out = r->out;
    for (uint64_t i = r->begin; i < r->end; i++) {
        if (i + t->rows_ahead < r->end) {
            const int64_t next = row_at(r, i + t->rows_ahead);
            for (uint64_t s = 0; next >= 0 && s < t->span_count; s++)
                fetch(t->base + t->spans[s].offset + (uint64_t)next * t->spans[s].stride, t->spans[s].bytes);
        }
        const int64_t row = row_at(r, i);
        if (row == ROW_BAD)
            return (int64_t)i;
        for (uint64_t s = 0; s < t->span_count; s++) {
            const struct ed_span *span = &t->spans[s];
            if (row < 0)
                memset(out, 0, span->bytes);
            else
                LOCAL(_copy)(out, t->base + span->offset + (uint64_t)row * span->stride, span->bytes);
            out += span->bytes;
        }
    }
    return ED_ALL_VALID;
}

static int64_t KERNEL(const struct ed_range *r)
{
    if (r->table->span_count != 1)
        return LOCAL(_spans)(r);
    switch (r->table->row_bytes) {
    case 64:
        return LOCAL(_packed)(r, 64);
    case 264: // DeepSeek-V4.1: 256 float8 values and 8 scales
        return LOCAL(_packed)(r, 264);
    case 320: // the paper: 160 bf16 values
        return LOCAL(_packed)(r, 320);
    case 512:
        return LOCAL(_packed)(r, 512);
    default:
        return LOCAL(_packed)(r, r->table->row_bytes);
    }
}

#undef KERNEL
#undef VECTOR
#undef COPY_VECTOR
#undef JOIN2
#undef JOIN
#undef LOCAL
