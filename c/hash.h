// SPDX-License-Identifier: Apache-2.0
// The Engram hash: from token ids to row ids, for all layers, orders and heads of a model.
//
// engramdax/ngram/layout.py states the rule. All arithmetic is exact: products stay below 2^63 because the
// multipliers are drawn so, and the remainder by a head's prime is corrected after it was estimated in
// double precision, which is what vectors do fastest.
#ifndef ENGRAMDAX_HASH_H
#define ENGRAMDAX_HASH_H

#include <stdint.h>

enum {
    ED_MAX_NGRAM = 16,
    ED_NO_SET = -2, // of instructions, by the name that was given
};

// The constants of a model. Arrays of layers are dense: [layers][max_ngram] and [layers][heads], where heads
// = order_count * heads_per_order.
struct ed_hasher {
    uint32_t layers;
    uint32_t max_ngram; // at most ED_MAX_NGRAM
    uint32_t order_count;
    uint32_t heads_per_order;
    const uint32_t *orders; // ascending, the last is max_ngram
    const int64_t *multipliers;
    const int64_t *primes;
    const int64_t *offsets;
    const double *inverses;   // 1 / prime
    int exact;                // a prime is too small for the estimate: divide
    const int32_t *token_map; // [vocab] of compressed ids; NULL where tokens are compressed already
    int64_t vocab;
    int64_t pad; // compressed
};

// A batch of sequences. A token of -1 is padding: its ids are -1, and nothing looks past it. So is every
// token from starts[sequences] on.
struct ed_token_batch {
    const void *tokens;
    uint64_t count;
    int tokens_64;         // int64, else int32
    const int64_t *starts; // [sequences + 1], ascending from 0; NULL: one sequence
    uint64_t sequences;
    const uint8_t *blocked; // [count], or NULL
    const int64_t *history; // [sequences][max_ngram - 1] raw ids before each start, newest first, -1 for
                            // none or blocked; NULL: none anywhere
};

// Hash layers [first_layer, last_layer) into out[count][last_layer - first_layer][heads], int32 or int64, with
// at most `threads` threads (0: as many as it is worth). Gives -1, or the lowest position whose token, or
// -2 - s where a history entry of sequence s, is outside the vocabulary.
int64_t ed_hash(const struct ed_hasher *hasher, const struct ed_token_batch *batch, uint32_t first_layer,
                uint32_t last_layer, void *out, int out_64, int threads);

// The same for all layers of one new sequence without a batch.
int64_t ed_hash_one(const struct ed_hasher *hasher, const void *tokens, uint64_t count, int tokens_64, void *out,
                    int out_64, int threads);

// The same for all layers on this thread, with the instruction set "plain", "avx2" or "avx512" (NULL: the best one);
// ED_NO_SET where this CPU or build has it not. The history is taken as checked.
int64_t ed_hash_bare(const struct ed_hasher *hasher, const struct ed_token_batch *batch, void *out, int out_64,
                     const char *set);

// The first sequence whose history names a token outside the vocabulary, -1 for none.
int64_t ed_check_history(const struct ed_hasher *hasher, const struct ed_token_batch *batch);

// Hash tokens [begin, end) only, as ed_hash() does, on this thread; `out` is where the ids of `begin` go.
// The history is taken as checked.
int64_t ed_hash_range(const struct ed_hasher *hasher, const struct ed_token_batch *batch, uint32_t first_layer,
                      uint32_t last_layer, uint64_t begin, uint64_t end, void *out, int out_64);

#endif
