// SPDX-License-Identifier: Apache-2.0
#include "kernel.h"

#include <stdatomic.h>
#include <string.h>

#include "media.h"
#include "target.h"

enum { ROW_NONE = -1, ROW_BAD = -2 };

// The row that position i asks for, ROW_NONE for a row of zeros, ROW_BAD for an id that is no row.
static inline __attribute__((always_inline)) int64_t row_at(const struct ed_range *r, uint64_t i)
{
    const struct ed_table *t = r->table;
    int64_t id;
    if (r->flags & ED_IDS_64) {
        memcpy(&id, (const uint8_t *)r->ids + i * sizeof id, sizeof id); // ids may stand anywhere
    } else {
        int32_t narrow;
        memcpy(&narrow, (const uint8_t *)r->ids + i * sizeof narrow, sizeof narrow);
        id = narrow;
    }
    int64_t first = 0, limit = (int64_t)t->rows;
    if (r->flags & ED_PER_HEAD) {
        const uint64_t head = i % t->head_count;
        first = t->head_begins[head];
        limit = t->head_begins[head + 1] - first;
    }
    if ((uint64_t)id < (uint64_t)limit)
        return first + id;
    return id == -1 || r->flags & ED_INVALID_ZERO ? ROW_NONE : ROW_BAD;
}

// Ask for all lines of [p, p + bytes), into the second-level cache: it waits for some 48 lines of memory at once, the
// first level for 10 to 16, and the copy finds them there soon enough. On a Zen core that is worth 1.3 to 2 times.
static inline __attribute__((always_inline)) void fetch(const uint8_t *p, uint64_t bytes)
{
    const uint8_t *line = (const uint8_t *)((uintptr_t)p & ~(uintptr_t)(ED_LINE - 1));
    for (; line < p + bytes; line += ED_LINE)
        __builtin_prefetch(line, 0, 2);
}

// Ask for the ids of the first rows of a range: they lie in the cache of whoever wrote them, and are read one after the
// other.
static void fetch_ids(const struct ed_range *r, uint64_t most)
{
    if (r->begin == r->end)
        return; // there may be no ids at all
    const uint64_t size = r->flags & ED_IDS_64 ? sizeof(int64_t) : sizeof(int32_t), count = r->end - r->begin;
    const uint8_t *at = (const uint8_t *)r->ids + r->begin * size, *end = at + (count < most ? count : most) * size;
    for (; at < end; at += ED_LINE)
        __builtin_prefetch(at);
}

static void fetch_spans(const struct ed_table *t, int64_t row)
{
    for (uint64_t s = 0; s < t->span_count; s++)
        fetch(t->base + t->spans[s].offset + (uint64_t)row * t->spans[s].stride, t->spans[s].bytes);
}

static inline __attribute__((always_inline)) void copy_small(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (bytes >= 16) {
        uint8_t v[16], w[16];
        for (uint64_t at = 0; at + 16 < bytes; at += 16) {
            memcpy(v, from + at, 16);
            memcpy(to + at, v, 16);
        }
        memcpy(w, from + bytes - 16, 16);
        memcpy(to + bytes - 16, w, 16);
    } else if (bytes >= 8) {
        uint64_t v, w;
        memcpy(&v, from, 8);
        memcpy(&w, from + bytes - 8, 8);
        memcpy(to, &v, 8);
        memcpy(to + bytes - 8, &w, 8);
    } else if (bytes >= 4) {
        uint32_t v, w;
        memcpy(&v, from, 4);
        memcpy(&w, from + bytes - 4, 4);
        memcpy(to, &v, 4);
        memcpy(to + bytes - 4, &w, 4);
    } else {
        for (uint64_t at = 0; at < bytes; at++)
            to[at] = from[at];
    }
}

#if defined(__x86_64__)

#include <immintrin.h>

BEGIN_TARGET("avx512f,avx512vl,avx512bw")
#define KERNEL kernel_avx512
#define VECTOR 64
#define COPY_VECTOR(t, f) _mm512_storeu_si512((void *)(t), _mm512_loadu_si512((const void *)(f)))
#include "kernel_loop.h"
END_TARGET

BEGIN_TARGET("avx2")
#define KERNEL kernel_avx2
#define VECTOR 32
#define COPY_VECTOR(t, f) _mm256_storeu_si256((__m256i *)(t), _mm256_loadu_si256((const __m256i *)(f)))
#include "kernel_loop.h"
END_TARGET

#define KERNEL kernel_sse2
#define VECTOR 16
#define COPY_VECTOR(t, f) _mm_storeu_si128((__m128i *)(t), _mm_loadu_si128((const __m128i *)(f)))
#include "kernel_loop.h"

static ed_kernel kernel_if(const char *name)
{
    // A CPU that has it but a kernel that does not save its registers counts as one without.
    __builtin_cpu_init();
    if (!strcmp(name, "avx512"))
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? kernel_avx512 : NULL;
    if (!strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") ? kernel_avx2 : NULL;
    return !strcmp(name, "sse2") ? kernel_sse2 : NULL;
}

static const char *const by_width[] = {"avx512", "avx2", "sse2"};

#elif defined(__aarch64__)

#include <arm_neon.h>

#define KERNEL kernel_neon
#define VECTOR 16
#define COPY_VECTOR(t, f) vst1q_u8((t), vld1q_u8(f))
#include "kernel_loop.h"

static ed_kernel kernel_if(const char *name)
{
    return !strcmp(name, "neon") ? kernel_neon : NULL;
}

static const char *const by_width[] = {"neon"};

#endif

ed_kernel ed_kernel_named(const char *name)
{
    if (name)
        return kernel_if(name);
    static _Atomic(ed_kernel) best;
    ed_kernel kernel = atomic_load_explicit(&best, memory_order_relaxed);
    if (kernel) // each chunk of each thread asks: their caches keep the line
        return kernel;
    for (unsigned i = 0; !kernel && i < sizeof by_width / sizeof *by_width; i++)
        kernel = kernel_if(by_width[i]);
    atomic_store_explicit(&best, kernel, memory_order_relaxed);
    return kernel;
}

void ed_fetch_rows(const struct ed_range *range, uint64_t most)
{
    const struct ed_table *t = range->table;
    for (uint64_t i = range->begin; i < range->end && i < range->begin + most; i++) {
        const int64_t row = row_at(range, i);
        for (uint64_t s = 0; row >= 0 && s < t->span_count; s++)
            __builtin_prefetch(t->base + t->spans[s].offset + (uint64_t)row * t->spans[s].stride);
    }
}

void ed_stream(uint8_t *out, const uint8_t *from, uint64_t bytes)
{
    uint64_t head = -(uintptr_t)out & (ED_LINE - 1);
    head = head < bytes ? head : bytes;
    memcpy(out, from, head);
    const uint64_t lines = (bytes - head) / ED_LINE;
    ed_store_lines(out + head, from + head, lines);
    const uint64_t done = head + lines * ED_LINE;
    memcpy(out + done, from + done, bytes - done);
}
