// SPDX-License-Identifier: Apache-2.0
#include "hash.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "target.h"
#include "team.h"

enum {
    BLOCK = 64, // tokens at a time: one bit each in a word, and everything about them in the first-level cache
    TOKENS_PER_CHUNK = BLOCK,
    // Ids that make another thread worth waking: ten microseconds of hashing and more.
    IDS_PER_THREAD = 32768,
};

static inline int64_t token_at(const struct ed_token_batch *b, uint64_t i)
{
    return b->tokens_64 ? ((const int64_t *)b->tokens)[i] : ((const int32_t *)b->tokens)[i];
}

// The compressed id of a raw one; false for what the vocabulary does not have.
static inline bool compress(const struct ed_hasher *h, int64_t token, int64_t *ret)
{
    if (token < 0 || token >= h->vocab)
        return false;
    *ret = h->token_map ? h->token_map[token] : token;
    return true;
}

// The sequence that position i is in; batch->sequences for the padding behind the last.
static uint64_t sequence_of(const struct ed_token_batch *b, uint64_t i)
{
    uint64_t low = 0, high = b->sequences;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if ((uint64_t)b->starts[middle + 1] <= i)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Where the loop over tokens stands.
struct view {
    uint64_t s, start; // the sequence, and its first position
    bool fresh;        // nothing is known of the token before
};

// What token i of sequence s sees before it, seen[1 .. max_ngram - 1] of one column: compressed ids, pads from the
// first blocked or missing one on. Gives -1, or the position of a token outside the vocabulary; the history was
// checked before.
static int64_t look_back(const struct ed_hasher *h, const struct ed_token_batch *b, const struct view *view, uint64_t i,
                         int64_t (*seen)[BLOCK + 1], uint32_t column)
{
    const uint64_t reach = h->max_ngram - 1;
    bool wall = false;
    for (uint64_t back = 1; back <= reach; back++) {
        const uint64_t before = i - view->start; // positions of the sequence, then the history
        int64_t token = -1, id = h->pad;
        bool open = true;
        if (back <= before) {
            token = token_at(b, i - back);
            open = !(b->blocked && b->blocked[i - back]);
        } else if (b->history) {
            token = b->history[view->s * reach + (back - before - 1)];
        }
        if (token != -1 && !compress(h, token, &id))
            return (int64_t)(i - back);
        wall |= token == -1 || !open;
        seen[back][column] = wall ? h->pad : id;
    }
    return -1;
}

// Find out what tokens [at, at + count) see: token at + i sees seen[k][i + 1] k places back, itself at 0. Column 0
// is the token before `at`, and left over from the last block. A bit of `padding` is set for each padding token.
// Gives -1, or the position of a token outside the vocabulary.
static int64_t look(const struct ed_hasher *h, const struct ed_token_batch *b, struct view *view, uint64_t at,
                    uint32_t count, int64_t (*seen)[BLOCK + 1], uint64_t *padding)
{
    const uint32_t max_ngram = h->max_ngram;
    for (uint32_t k = 0; k < max_ngram && !view->fresh; k++)
        seen[k][0] = seen[k][BLOCK];
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t position = at + i;
        if (b->starts) {
            while (view->s < b->sequences && (uint64_t)b->starts[view->s + 1] <= position) {
                view->s++;
                view->fresh = true;
            }
            if (view->s < b->sequences)
                view->start = (uint64_t)b->starts[view->s];
        }
        const int64_t token = view->s < b->sequences ? token_at(b, position) : -1;
        int64_t id = h->pad;
        if (token == -1)
            *padding |= 1ull << i;
        else if (!compress(h, token, &id))
            return (int64_t)position;
        if (token == -1 || (b->blocked && b->blocked[position])) {
            // Blocking is sticky: all that is older is pad, too, for this token and those that look through it.
            for (uint32_t k = 0; k < max_ngram; k++)
                seen[k][i + 1] = h->pad;
        } else {
            seen[0][i + 1] = id;
            if (view->fresh) {
                const int64_t bad = look_back(h, b, view, position, seen, i + 1);
                if (bad >= 0)
                    return bad;
            } else {
                for (uint32_t k = 1; k < max_ngram; k++)
                    seen[k][i + 1] = seen[k - 1][i];
            }
        }
        view->fresh = false;
    }
    return -1;
}

// The heads of one order of a layer.
struct heads {
    uint32_t count;
    int exact;
    const int64_t *primes, *offsets;
    const double *inverses;
};

#define MAGIC 4503599627370496.0 // 2^52
#define QUOTIENT_MASK ((1ll << 52) - 1)

// Row ids of `count` tokens in these heads, `stride` ids from token to token: the remainders of each token's mix by
// the primes, plus the offsets. `numbers` are the mixes again.
static inline __attribute__((always_inline)) void reduce_plain(const struct heads *heads, const int64_t *mixes,
                                                               const double *numbers, uint32_t count, uint8_t *out,
                                                               uint64_t stride, int out_64)
{
    const struct heads h = *heads;
    for (uint32_t t = 0; t < count; t++) {
        const int64_t mix = mixes[t];
        const double number = numbers[t];
        for (uint32_t i = 0; i < h.count; i++) {
            int64_t rest;
            if (h.exact) {
                rest = mix % h.primes[i];
            } else {
                // The quotient is below 2^51, so adding 2^52 leaves it, rounded, in the low bits of the sum. It is
                // off by less than one from the true one, and the remainder by less than one prime.
                const union {
                    double number;
                    uint64_t bits;
                } sum = {.number = number * h.inverses[i] + MAGIC};
                // Unsigned: a quotient that is one too high may lead beyond 2^63.
                rest = (int64_t)((uint64_t)mix - (sum.bits & QUOTIENT_MASK) * (uint64_t)h.primes[i]);
                rest += rest >> 63 & h.primes[i];
            }
            rest += h.offsets[i];
            if (out_64)
                ((int64_t *)out)[t * stride + i] = rest;
            else
                ((int32_t *)out)[t * stride + i] = (int32_t)rest;
        }
    }
}

#define RANGE range_plain
#define REDUCE reduce_plain
#include "hash_loop.h"

#if defined(__x86_64__)

#include <immintrin.h>

BEGIN_TARGET("avx2,fma")
#define RANGE range_avx2
#define REDUCE reduce_plain // the compiler makes vectors of it
#include "hash_loop.h"
END_TARGET

BEGIN_TARGET("avx512f,avx512dq,avx512vl")
static inline void reduce_avx512(const struct heads *heads, const int64_t *mixes, const double *numbers, uint32_t count,
                                 uint8_t *out, uint64_t stride, int out_64)
{
    if (heads->exact) {
        reduce_plain(heads, mixes, numbers, count, out, stride, out_64);
        return;
    }
    const __m512d magic = _mm512_set1_pd(MAGIC);
    const __m512i quotient_mask = _mm512_set1_epi64(QUOTIENT_MASK);
    for (uint32_t i = 0; i < heads->count; i += 8) {
        const uint32_t left = heads->count - i;
        const __mmask8 some = left < 8 ? (__mmask8)((1u << left) - 1) : 0xff;
        const __m512i primes = _mm512_maskz_loadu_epi64(some, heads->primes + i);
        const __m512i offsets = _mm512_maskz_loadu_epi64(some, heads->offsets + i);
        const __m512d inverses = _mm512_maskz_loadu_pd(some, heads->inverses + i);
        for (uint32_t t = 0; t < count; t++) {
            const __m512d sum = _mm512_fmadd_pd(_mm512_set1_pd(numbers[t]), inverses, magic);
            const __m512i quotients = _mm512_and_si512(_mm512_castpd_si512(sum), quotient_mask);
            __m512i rest = _mm512_sub_epi64(_mm512_set1_epi64(mixes[t]), _mm512_mullo_epi64(quotients, primes));
            // One below zero is a large one without sign.
            rest = _mm512_min_epu64(rest, _mm512_add_epi64(rest, primes));
            rest = _mm512_add_epi64(rest, offsets);
            if (out_64)
                _mm512_mask_storeu_epi64((int64_t *)out + t * stride + i, some, rest);
            else if (left >= 8)
                _mm256_storeu_si256((__m256i *)((int32_t *)out + t * stride + i), _mm512_cvtepi64_epi32(rest));
            else
                _mm256_mask_storeu_epi32((int32_t *)out + t * stride + i, some, _mm512_cvtepi64_epi32(rest));
        }
    }
}
#define RANGE range_avx512
#define REDUCE reduce_avx512
#include "hash_loop.h"
END_TARGET

#endif

typedef int64_t (*range_function)(const struct ed_hasher *, const struct ed_token_batch *, uint32_t, uint32_t, uint64_t,
                                  uint64_t, void *, int);

// The loop of an instruction set, or of the best one; NULL where this CPU has no such.
static range_function range_named(const char *name)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if ((!name || !strcmp(name, "avx512")) && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return range_avx512;
    if ((!name || !strcmp(name, "avx2")) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return range_avx2;
#endif
    return !name || !strcmp(name, "plain") ? range_plain : NULL;
}

int64_t ed_hash_range(const struct ed_hasher *hasher, const struct ed_token_batch *batch, uint32_t first_layer,
                      uint32_t last_layer, uint64_t begin, uint64_t end, void *out, int out_64)
{
    static _Atomic(range_function) best;
    range_function function = best;
    if (!function)
        best = function = range_named(NULL);
    return function(hasher, batch, first_layer, last_layer, begin, end, out, out_64);
}

int64_t ed_hash_bare(const struct ed_hasher *hasher, const struct ed_token_batch *batch, void *out, int out_64,
                     const char *set)
{
    const range_function function = range_named(set);
    return function ? function(hasher, batch, 0, hasher->layers, 0, batch->count, out, out_64) : ED_NO_SET;
}

struct run {
    const struct ed_hasher *hasher;
    const struct ed_token_batch *batch;
    uint32_t first_layer, last_layer;
    uint64_t tokens_per_chunk;
    uint8_t *out;
    int out_64;
    _Atomic uint64_t bad; // the lowest bad position, UINT64_MAX for none
};

static void do_chunk(void *context, uint64_t chunk)
{
    struct run *run = context;
    const struct ed_hasher *h = run->hasher;
    const uint64_t begin = chunk * run->tokens_per_chunk, count = run->batch->count;
    const uint64_t end = begin + run->tokens_per_chunk < count ? begin + run->tokens_per_chunk : count;
    const uint64_t token_bytes =
        (uint64_t)(run->last_layer - run->first_layer) * h->order_count * h->heads_per_order * (run->out_64 ? 8 : 4);
    const int64_t bad = ed_hash_range(h, run->batch, run->first_layer, run->last_layer, begin, end,
                                      run->out + begin * token_bytes, run->out_64);
    if (bad < 0)
        return;
    uint64_t lowest = atomic_load(&run->bad);
    while ((uint64_t)bad < lowest && !atomic_compare_exchange_weak(&run->bad, &lowest, (uint64_t)bad))
        ;
}

int64_t ed_check_history(const struct ed_hasher *hasher, const struct ed_token_batch *batch)
{
    const uint64_t reach = hasher->max_ngram - 1;
    for (uint64_t i = 0; batch->history && i < batch->sequences * reach; i++) {
        int64_t id;
        if (batch->history[i] != -1 && !compress(hasher, batch->history[i], &id))
            return (int64_t)(i / reach);
    }
    return -1;
}

int64_t ed_hash(const struct ed_hasher *hasher, const struct ed_token_batch *batch, uint32_t first_layer,
                uint32_t last_layer, void *out, int out_64, int threads)
{
    const int64_t sequence = ed_check_history(hasher, batch);
    if (sequence >= 0)
        return -2 - sequence;
    if (batch->count == 0)
        return -1;
    const uint64_t per_token = (uint64_t)(last_layer - first_layer) * hasher->order_count * hasher->heads_per_order;
    struct run run = {hasher, batch, first_layer, last_layer, TOKENS_PER_CHUNK, out, out_64, UINT64_MAX};
    while (batch->count / run.tokens_per_chunk >= ED_MAX_CHUNKS)
        run.tokens_per_chunk *= 2;
    const uint64_t worth = 1 + batch->count * per_token / IDS_PER_THREAD;
    const int limit = ed_team_limit();
    const int best = worth < (uint64_t)limit ? (int)worth : limit;
    threads = threads <= 0 ? best : threads < limit ? threads : limit;
    struct ed_job job = {
        .run = do_chunk,
        .context = &run,
        .chunks = (uint32_t)((batch->count + run.tokens_per_chunk - 1) / run.tokens_per_chunk),
    };
    ed_team_run(&job, threads - 1);
    const uint64_t bad = atomic_load(&run.bad);
    return bad == UINT64_MAX ? -1 : (int64_t)bad;
}

int64_t ed_hash_one(const struct ed_hasher *hasher, const void *tokens, uint64_t count, int tokens_64, void *out,
                    int out_64, int threads)
{
    const struct ed_token_batch batch = {.tokens = tokens, .count = count, .tokens_64 = tokens_64, .sequences = 1};
    return ed_hash(hasher, &batch, 0, hasher->layers, out, out_64, threads);
}
