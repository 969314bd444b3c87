// SPDX-License-Identifier: Apache-2.0
// Threads in the place of GPUs open lanes, post rounds, take some of their chunks, give others up, and close their
// lanes again, while other threads gather: run it under ThreadSanitizer (tools/tsan). Every row that is taken is
// checked.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gather.h"
#include "lane.h"
#include "stress.h"

enum {
    GPUS = 5,
    GATHERING = 2,
    ROWS = 3000,
    CAPACITY = 2048,
    ROUNDS_OF_A_LANE = 12,
    WIDTH = 264,
};

static struct ed_span span = {0, WIDTH, WIDTH};
static struct ed_table table;
static int openings = 40;
static atomic_bool done;

// Pinned memory, as engramdax/cuda/lane.py lays it out.
struct pinned {
    _Alignas(128) uint64_t message;
    uint64_t begun;
    _Alignas(128) uint32_t finished;
    _Alignas(128) uint64_t flags[CAPACITY / ED_LANE_CHUNK_UNIT * ED_LANE_FLAG_STRIDE];
    int32_t ids[CAPACITY];
    _Alignas(128) uint8_t staging[CAPACITY * WIDTH];
};

// One round: its rows are taken chunk by chunk, or those that are late are given up.
static void round_of(struct ed_lane *lane, struct pinned *p, uint32_t sequence, uint64_t *state)
{
    const uint32_t rows = 1 + (uint32_t)(next(state) % (1 + next(state) % CAPACITY));
    const uint32_t chunk_rows = ED_LANE_CHUNK_UNIT * (1 + (uint32_t)(next(state) % 6));
    const uint64_t stride = (chunk_rows * WIDTH + ED_LANE_ALIGN - 1) / ED_LANE_ALIGN * ED_LANE_ALIGN;
    const bool patient = next(state) % 4;
    for (uint32_t i = 0; i < rows; i++)
        p->ids[i] = (int32_t)(next(state) % ROWS);
    ed_lane_expect(lane, next(state) % 2 ? sequence : 0);
    __atomic_store_n(&p->begun, sequence, __ATOMIC_RELAXED);
    __atomic_store_n(&p->message, ED_LANE_MESSAGE(sequence, chunk_rows, rows), __ATOMIC_RELEASE);
    bool late = false;
    for (uint32_t chunk = 0; chunk * chunk_rows < rows; chunk++) {
        const uint64_t *const word = &p->flags[chunk * ED_LANE_FLAG_STRIDE];
        uint64_t flag = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        for (unsigned looks = 1; (uint32_t)flag != sequence && (patient || looks < 20); looks++) {
            sched_yield();
            flag = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        }
        const bool there = (uint32_t)flag == sequence;
        late |= !there;
        for (uint32_t i = chunk * chunk_rows; there && i < rows && i < (chunk + 1) * chunk_rows; i++)
            check(!memcmp(p->staging + (flag >> 32) * stride + (i - chunk * chunk_rows) * WIDTH,
                          table.base + (uint64_t)p->ids[i] * WIDTH, WIDTH),
                  "a staged row");
    }
    // The lane may be used again at once, or, where a chunk was given up, when nobody works at it any more.
    while (late && __atomic_load_n(&p->finished, __ATOMIC_ACQUIRE) != sequence)
        sched_yield();
}

static void *gpu(void *argument)
{
    uint64_t state = 88172645463325252u * (2 * (uint64_t)(uintptr_t)argument + 1);
    for (int opening = 0; opening < openings; opening++) {
        struct pinned *p = aligned_alloc(128, sizeof *p);
        check(p != NULL, "memory");
        memset(p, 0, sizeof *p);
        uint32_t sequence = next(&state) % 2 ? 0 : UINT32_MAX - 3;
        p->message = ED_LANE_MESSAGE(sequence, ED_LANE_CHUNK_UNIT, 1);
        const struct ed_lane_memory memory = {&p->message,      &p->begun,  &p->finished, p->flags,
                                              p->ids,           p->staging, CAPACITY,     CAPACITY / ED_LANE_CHUNK_UNIT,
                                              sizeof p->staging};
        struct ed_lane *lane = ed_lane_open(&memory, &table, 1 + (int)(next(&state) % 4), next(&state) % 2);
        check(lane != NULL, "a lane");
        if (next(&state) % 4 == 0)
            ed_lane_keep_awake(lane);
        if (next(&state) % 3 == 0)
            ed_lane_disturb(lane, 3, 50);
        const uint32_t rounds = (uint32_t)(next(&state) % ROUNDS_OF_A_LANE);
        for (uint32_t i = 0; i < rounds; i++)
            round_of(lane, p, sequence = ED_LANE_AFTER(sequence), &state);
        struct ed_lane_served served;
        ed_lane_served(lane, &served);
        check(served.rounds == rounds && !ed_lane_troubled(lane), "what was served");
        ed_lane_close(lane);
        memset(p, 0xA5, sizeof *p);
        free(p);
    }
    return NULL;
}

static void *gatherer(void *argument)
{
    uint64_t state = 42 + (uint64_t)(uintptr_t)argument;
    while (!atomic_load(&done)) {
        int64_t ids[700];
        static _Thread_local uint8_t out[700 * WIDTH];
        for (unsigned i = 0; i < 700; i++)
            ids[i] = (int64_t)(next(&state) % ROWS);
        const struct ed_request q = {.table = &table, .ids = ids, .count = 700, .out = out, .flags = ED_IDS_64};
        check(ed_gather(&q, 1, 0, ED_TEAM) == ED_DONE, "the outcome");
        for (unsigned i = 0; i < 700; i++)
            check(!memcmp(out + i * WIDTH, table.base + (uint64_t)ids[i] * WIDTH, WIDTH), "a row");
        ed_team_configure(1 + (int)(next(&state) % 6), (int)(next(&state) % 50));
        ed_lanes_configure((int)(next(&state) % 200));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        openings = atoi(argv[1]);
    uint64_t state = 1;
    static uint8_t rows[ROWS * WIDTH];
    for (uint64_t i = 0; i < sizeof rows; i++)
        rows[i] = (uint8_t)next(&state);
    table = (struct ed_table){.base = rows,
                              .guard_begin = rows,
                              .guard_end = rows + sizeof rows,
                              .rows = ROWS,
                              .row_bytes = WIDTH,
                              .spans = &span,
                              .span_count = 1,
                              .rows_ahead = 12};
    pthread_t threads[GPUS + GATHERING];
    for (int i = 0; i < GPUS + GATHERING; i++)
        check(!pthread_create(&threads[i], NULL, i < GPUS ? gpu : gatherer, (void *)(uintptr_t)i), "a thread");
    for (int i = 0; i < GPUS + GATHERING; i++) {
        if (i == GPUS)
            atomic_store(&done, true);
        pthread_join(threads[i], NULL);
    }
    printf("all rows were right\n");
    return 0;
}
