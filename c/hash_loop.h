// SPDX-License-Identifier: Apache-2.0
// The loop over tokens, included by hash.c once for each instruction set with
//   RANGE                                                      the name of the function
//   REDUCE(hasher, first_head, heads, mix, out, at, out_64)    row ids of one order's heads
// No include guard: each inclusion makes another function.

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define LOCAL(name) JOIN(RANGE, name)

static inline __attribute__((always_inline)) void LOCAL(_window)(const struct ed_hasher *h, const int64_t *window,
                                                              uint32_t first_layer, uint32_t last_layer, void *out,
                                                              uint64_t at, int out_64)
{
    const uint32_t all_heads = h->order_count * h->heads_per_order;
    int64_t seen[ED_MAX_NGRAM];
    bool wall = false;
    for (uint32_t k = 0; k < h->max_ngram; k++) {
        wall |= window[k] == WALL; // blocking is sticky: all that is older is pad, too
        seen[k] = wall ? h->pad : window[k];
    }
    for (uint32_t layer = first_layer; layer < last_layer; layer++) {
        const int64_t *multipliers = h->multipliers + (uint64_t)layer * h->max_ngram;
        int64_t mix = 0;
        uint32_t reached = 0;
        for (uint32_t o = 0; o < h->order_count; o++) {
            for (; reached < h->orders[o]; reached++)
                mix ^= seen[reached] * multipliers[reached];
            const uint64_t first_head = (uint64_t)layer * all_heads + (uint64_t)o * h->heads_per_order;
            REDUCE(h, first_head, h->heads_per_order, mix, out, at, out_64);
            at += h->heads_per_order;
        }
    }
}

static int64_t RANGE(const struct ed_hasher *h,
                                                                const struct ed_token_batch *b,
                                                                uint32_t first_layer, uint32_t last_layer,
                                                                uint64_t begin, uint64_t end, void *out, int out_64)
{
    const uint32_t layers = last_layer - first_layer;
    const uint64_t per_token = (uint64_t)layers * h->order_count * h->heads_per_order;
    int64_t window[ED_MAX_NGRAM];
    uint64_t s = b->starts ? sequence_of(b, begin) : 0, start = 0;
    bool fresh = true;
    for (uint64_t i = begin; i < end; i++) {
        if (b->starts) {
            while (s < b->sequences && (uint64_t)b->starts[s + 1] <= i) {
                s++;
                fresh = true;
            }
            if (s == b->sequences) {
                pad_ids(h, layers, out, (i - begin) * per_token, out_64);
                continue;
            }
            start = (uint64_t)b->starts[s];
        }
        if (fresh) {
            for (uint32_t k = 1; k < h->max_ngram; k++) {
                if (!look_back(h, b, s, start, i, k, &window[k]))
                    return (int64_t)(i - k);
            }
            fresh = false;
        } else {
            memmove(window + 1, window, (h->max_ngram - 1) * sizeof *window);
        }
        const int64_t token = token_at(b, i);
        if (!compress(h, token, &window[0]))
            return (int64_t)i;
        if (b->blocked && b->blocked[i])
            window[0] = WALL;
        if (token == -1)
            pad_ids(h, layers, out, (i - begin) * per_token, out_64);
        else
            LOCAL(_window)(h, window, first_layer, last_layer, out, (i - begin) * per_token, out_64);
    }
    return -1;
}

#undef RANGE
#undef REDUCE
#undef JOIN2
#undef JOIN
#undef LOCAL
