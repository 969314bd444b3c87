// SPDX-License-Identifier: Apache-2.0
#include "hash.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "team.h"

enum {
    WALL = -1, // in a window: nothing can be seen from here on
    TOKENS_PER_CHUNK = 64,
    // Ids that make another thread worth waking: some tens of microseconds of hashing.
    IDS_PER_THREAD = 32768,
};

static inline int64_t token_at(const struct ed_token_batch *b, uint64_t i)
{
    return b->tokens_64 ? ((const int64_t *)b->tokens)[i] : ((const int32_t *)b->tokens)[i];
}

// The compressed id of a raw one, WALL for -1; false for what the vocabulary does not have.
static inline bool compress(const struct ed_hasher *h, int64_t token, int64_t *ret)
{
    if (token == -1) {
        *ret = WALL;
        return true;
    }
    if (token < 0 || token >= h->vocab)
        return false;
    *ret = h->token_map ? h->token_map[token] : token;
    return true;
}

#define MAGIC 4503599627370496.0 // 2^52
#define QUOTIENT_MASK ((1ll << 52) - 1)

// Row ids of the heads of one order: the remainders of `mix` by their primes, plus their offsets.
static inline __attribute__((always_inline)) void reduce_plain(const struct ed_hasher *h, uint64_t first_head,
                                                               uint32_t heads, int64_t mix, void *out, uint64_t at,
                                                               int out_64)
{
    const int64_t *primes = h->primes + first_head, *offsets = h->offsets + first_head;
    const double *inverses = h->inverses + first_head;
    for (uint32_t i = 0; i < heads; i++) {
        int64_t rest;
        if (h->exact) {
            rest = mix % primes[i];
        } else {
            // The quotient is below 2^51, so adding 2^52 leaves it, rounded, in the low bits of the sum. It is off
            // by less than one from the true one, and the remainder by less than one prime.
            const union {
                double number;
                int64_t bits;
            } sum = {.number = (double)mix * inverses[i] + MAGIC};
            rest = mix - (sum.bits & QUOTIENT_MASK) * primes[i];
            rest += rest >> 63 & primes[i];
        }
        if (out_64)
            ((int64_t *)out)[at + i] = rest + offsets[i];
        else
            ((int32_t *)out)[at + i] = (int32_t)(rest + offsets[i]);
    }
}

static void pad_ids(const struct ed_hasher *h, uint32_t layers, void *out, uint64_t at, int out_64)
{
    const uint64_t count = (uint64_t)layers * h->order_count * h->heads_per_order;
    if (out_64)
        memset((int64_t *)out + at, 0xff, count * 8);
    else
        memset((int32_t *)out + at, 0xff, count * 4);
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

// What stands `back` places before position i of sequence s: compressed, or WALL. False for a token outside the
// vocabulary; the history was checked before.
static bool look_back(const struct ed_hasher *h, const struct ed_token_batch *b, uint64_t s, uint64_t start,
                      uint64_t i, uint32_t back, int64_t *ret)
{
    if (i >= start + back) {
        const uint64_t at = i - back;
        if (b->blocked && b->blocked[at]) {
            *ret = WALL;
            return true;
        }
        return compress(h, token_at(b, at), ret);
    }
    *ret = WALL;
    if (!b->history)
        return true;
    const uint64_t older = back - (i - start) - 1;
    return older >= h->max_ngram - 1 || compress(h, b->history[s * (h->max_ngram - 1) + older], ret);
}

#define RANGE range_plain
#define REDUCE reduce_plain
#include "hash_loop.h"

#if defined(__x86_64__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")
static inline void reduce_avx2(const struct ed_hasher *h, uint64_t first_head, uint32_t heads, int64_t mix, void *out,
                               uint64_t at, int out_64)
{
    reduce_plain(h, first_head, heads, mix, out, at, out_64); // the compiler makes vectors of it
}
#define RANGE range_avx2
#define REDUCE reduce_avx2
#include "hash_loop.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl")
static inline void reduce_avx512(const struct ed_hasher *h, uint64_t first_head, uint32_t heads, int64_t mix,
                                 void *out, uint64_t at, int out_64)
{
    if (heads % 8 || h->exact) {
        reduce_plain(h, first_head, heads, mix, out, at, out_64);
        return;
    }
    const __m512d wide = _mm512_set1_pd((double)mix), magic = _mm512_set1_pd(MAGIC);
    const __m512i mixes = _mm512_set1_epi64(mix), mask = _mm512_set1_epi64(QUOTIENT_MASK);
    for (uint32_t i = 0; i < heads; i += 8) {
        const __m512i primes = _mm512_loadu_si512(h->primes + first_head + i);
        const __m512d sum = _mm512_fmadd_pd(wide, _mm512_loadu_pd(h->inverses + first_head + i), magic);
        const __m512i quotients = _mm512_and_si512(_mm512_castpd_si512(sum), mask);
        __m512i rest = _mm512_sub_epi64(mixes, _mm512_mullo_epi64(quotients, primes));
        rest = _mm512_mask_add_epi64(rest, _mm512_movepi64_mask(rest), rest, primes);
        rest = _mm512_add_epi64(rest, _mm512_loadu_si512(h->offsets + first_head + i));
        if (out_64)
            _mm512_storeu_si512((int64_t *)out + at + i, rest);
        else
            _mm256_storeu_si256((__m256i *)((int32_t *)out + at + i), _mm512_cvtepi64_epi32(rest));
    }
}
#define RANGE range_avx512
#define REDUCE reduce_avx512
#include "hash_loop.h"
#pragma GCC pop_options

#endif

typedef int64_t (*range_function)(const struct ed_hasher *, const struct ed_token_batch *, uint32_t, uint32_t,
                                  uint64_t, uint64_t, void *, int);

static range_function best_range(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return range_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return range_avx2;
#endif
    return range_plain;
}

int64_t ed_hash_range(const struct ed_hasher *hasher, const struct ed_token_batch *batch, uint32_t first_layer,
                      uint32_t last_layer, uint64_t begin, uint64_t end, void *out, int out_64)
{
    static _Atomic(range_function) best;
    range_function function = best;
    if (!function)
        best = function = best_range();
    return function(hasher, batch, first_layer, last_layer, begin, end, out, out_64);
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
    const uint64_t token_bytes = (uint64_t)(run->last_layer - run->first_layer) * h->order_count *
                                 h->heads_per_order * (run->out_64 ? 8 : 4);
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
    const uint64_t seen = hasher->max_ngram - 1;
    for (uint64_t i = 0; batch->history && i < batch->sequences * seen; i++) {
        int64_t id;
        if (!compress(hasher, batch->history[i], &id))
            return (int64_t)(i / seen);
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
    ed_team_post(&job, threads - 1);
    ed_team_wait(&job);
    const uint64_t bad = atomic_load(&run.bad);
    return bad == UINT64_MAX ? -1 : (int64_t)bad;
}
