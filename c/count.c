// SPDX-License-Identifier: Apache-2.0
#include "count.h"

#include "team.h"

enum { AHEAD = 16 };

struct run {
    const int64_t *ids;
    uint64_t tokens, stride;
    int64_t first_row;
    uint32_t *counters;
};

static void count_column(void *context, uint64_t column)
{
    const struct run *run = context;
    const int64_t *ids = run->ids + column;
    for (uint64_t t = 0; t < run->tokens; t++) {
        if (t + AHEAD < run->tokens && ids[(t + AHEAD) * run->stride] >= 0)
            __builtin_prefetch(run->counters + (ids[(t + AHEAD) * run->stride] - run->first_row), 1);
        const int64_t id = ids[t * run->stride];
        if (id < 0)
            continue;
        uint32_t *counter = &run->counters[id - run->first_row];
        *counter += *counter != UINT32_MAX;
    }
}

void ed_count(const int64_t *ids, uint64_t tokens, uint64_t stride, uint32_t columns, int64_t first_row,
              uint32_t *counters)
{
    if (tokens == 0 || columns == 0)
        return;
    const struct run run = {ids, tokens, stride, first_row, counters};
    struct ed_job job = {.run = count_column, .context = (void *)&run, .chunks = columns};
    ed_team_run(&job, ed_team_limit() - 1);
}
