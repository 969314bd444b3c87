// SPDX-License-Identifier: Apache-2.0
// Counting of row accesses: one counter a row.
#ifndef ENGRAMDAX_COUNT_H
#define ENGRAMDAX_COUNT_H

#include <stdint.h>

// Count the ids of `columns` heads: ids[token * stride + column] for `tokens` tokens, where ids of a head stay
// within its own rows, so that the threads of the team may each take whole heads. Ids of -1 are passed over.
// counters[id - first_row] goes up by one and stays at its maximum.
void ed_count(const int64_t *ids, uint64_t tokens, uint64_t stride, uint32_t columns, int64_t first_row,
              uint32_t *counters);

#endif
