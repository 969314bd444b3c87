// SPDX-License-Identifier: Apache-2.0
// The loop over tokens, included by hash.c once for each instruction set with
//   RANGE                                                    the name of the function
//   REDUCE(heads, mixes, numbers, count, out, stride, out_64)  row ids of one order's heads, see reduce_plain()
// No include guard: each inclusion makes another function.

static int64_t RANGE(const struct ed_hasher *h, const struct ed_token_batch *b, uint32_t first_layer,
                     uint32_t last_layer, uint64_t begin, uint64_t end, void *out, int out_64)
{
    const uint32_t order_count = h->order_count, heads_per_order = h->heads_per_order, max_ngram = h->max_ngram;
    const uint64_t layer_heads = (uint64_t)order_count * heads_per_order;
    const uint64_t stride = (last_layer - first_layer) * layer_heads;
    const uint64_t id_bytes = out_64 ? 8 : 4;
    uint8_t *target = out;
    int64_t seen[ED_MAX_NGRAM][BLOCK + 1];
    struct view view = {.s = b->starts ? sequence_of(b, begin) : 0, .fresh = true};
    for (uint64_t at = begin; at < end; at += BLOCK) {
        const uint32_t count = end - at < BLOCK ? (uint32_t)(end - at) : BLOCK;
        uint64_t padding = 0;
        const int64_t bad = look(h, b, &view, at, count, seen, &padding);
        if (bad >= 0)
            return bad;
        for (uint32_t layer = first_layer; layer < last_layer; layer++) {
            const int64_t *multipliers = h->multipliers + (uint64_t)layer * max_ngram;
            int64_t mixes[BLOCK] = {0};
            double numbers[BLOCK];
            uint32_t reached = 0;
            for (uint32_t o = 0; o < order_count; o++) {
                for (; reached < h->orders[o]; reached++) {
                    for (uint32_t i = 0; i < count; i++)
                        mixes[i] ^= seen[reached][i + 1] * multipliers[reached];
                }
                for (uint32_t i = 0; i < count; i++)
                    numbers[i] = (double)mixes[i];
                const uint64_t column = o * (uint64_t)heads_per_order, first = layer * layer_heads + column;
                const struct heads heads = {heads_per_order, h->exact, h->primes + first, h->offsets + first,
                                            h->inverses + first};
                REDUCE(&heads, mixes, numbers, count,
                       target + ((layer - first_layer) * layer_heads + column) * id_bytes, stride, out_64);
            }
        }
        for (; padding; padding &= padding - 1)
            memset(target + (uint64_t)__builtin_ctzll(padding) * stride * id_bytes, 0xff, stride * id_bytes);
        target += count * stride * id_bytes;
    }
    return -1;
}

#undef RANGE
#undef REDUCE
