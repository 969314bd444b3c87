// SPDX-License-Identifier: Apache-2.0
// Many threads gather at once through the C core alone: run it under ThreadSanitizer (tools/tsan), which has no
// Python to look at then. Every row is checked. Forks and faults are left out.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gather.h"
#include "stress.h"

enum {
    THREADS = 12,
    CROWD = 80, // more than the team has places for jobs
    ROWS = 3000,
    MOST_IDS = 3000,
    TABLES = 3,
    HANDED_OVER = 16,
};

static const uint64_t sizes[TABLES] = {264, 7, 5120};
static struct ed_span spans[TABLES];
static struct ed_table tables[TABLES];
static int rounds = 150;

// Handles that one thread started and another waits for, with their buffers.
struct handed {
    struct ed_pending *pending;
    struct ed_request request;
};
static struct handed handed[HANDED_OVER];
static pthread_mutex_t handing = PTHREAD_MUTEX_INITIALIZER;

static void check_rows(const struct ed_request *q)
{
    const int64_t *ids = q->ids;
    for (uint64_t i = 0; i < q->count; i++)
        check(!memcmp(q->out + i * q->table->row_bytes, q->table->base + (uint64_t)ids[i] * q->table->row_bytes,
                      q->table->row_bytes),
              "a row");
}

static struct ed_request some_request(uint64_t *state, uint64_t most)
{
    const struct ed_table *table = &tables[next(state) % TABLES];
    const uint64_t count = next(state) % (1 + next(state) % most);
    int64_t *ids = malloc((count + 1) * sizeof *ids);
    for (uint64_t i = 0; i < count; i++)
        ids[i] = (int64_t)(next(state) % ROWS);
    return (struct ed_request){
        .table = table, .ids = ids, .count = count, .out = malloc(count * table->row_bytes + 1), .flags = ED_IDS_64};
}

static void forget(struct ed_request *q)
{
    free((void *)q->ids);
    free(q->out);
}

static void gather_one(uint64_t *state)
{
    struct ed_request q = some_request(state, MOST_IDS);
    check(ed_gather(&q, 1, (int)(next(state) % 6), ED_TEAM) == ED_DONE, "the outcome");
    check_rows(&q);
    if (q.count) {
        const uint64_t at = next(state) % q.count;
        ((int64_t *)q.ids)[at] = ROWS;
        check(ed_gather(&q, 1, 0, ED_TEAM) == ED_BAD_ID && ed_failure()->position == at, "the bad id");
    }
    forget(&q);
}

static void gather_many(uint64_t *state)
{
    struct ed_request requests[9];
    const uint64_t count = 2 + next(state) % 8;
    for (uint64_t r = 0; r < count; r++)
        requests[r] = some_request(state, 300);
    check(ed_gather(requests, count, 0, ED_TEAM) == ED_DONE, "the outcome of many");
    for (uint64_t r = 0; r < count; r++) {
        check_rows(&requests[r]);
        forget(&requests[r]);
    }
}

static void finish(struct handed *h, bool drop)
{
    if (!h->pending)
        return;
    if (drop) {
        ed_pending_drop(h->pending);
    } else {
        check(ed_pending_wait(h->pending) == ED_DONE, "the outcome of a handle");
        check_rows(&h->request);
    }
    forget(&h->request);
    h->pending = NULL;
}

static void start_and_hand_over(uint64_t *state)
{
    struct handed mine = {.request = some_request(state, MOST_IDS)};
    mine.pending = ed_gather_start(&mine.request, (int)(next(state) % 4));
    check(mine.pending != NULL, "memory");
    (void)ed_pending_done(mine.pending);
    pthread_mutex_lock(&handing);
    struct handed *place = &handed[next(state) % HANDED_OVER], other = *place;
    *place = mine;
    pthread_mutex_unlock(&handing);
    finish(&other, next(state) % 4 == 0);
}

static void *worker(void *argument)
{
    uint64_t state = 88172645463325252u * (2 * (uint64_t)(uintptr_t)argument + 1);
    for (int round = 0; round < rounds; round++) {
        switch (next(&state) % 8) {
        case 0:
            gather_many(&state);
            break;
        case 1:
        case 2:
            start_and_hand_over(&state);
            break;
        case 3:
            ed_team_configure(1 + (int)(next(&state) % 6), (int)(next(&state) % 50));
            break;
        default:
            gather_one(&state);
        }
    }
    return NULL;
}

// Output past the caches.
static void *streamer(void *argument)
{
    (void)argument;
    uint64_t state = 42;
    const uint64_t count = 4000;
    int64_t *ids = malloc(count * sizeof *ids);
    for (uint64_t i = 0; i < count; i++)
        ids[i] = (int64_t)(next(&state) % ROWS);
    const struct ed_request q = {
        .table = &tables[2], .ids = ids, .count = count, .out = malloc(count * sizes[2] + 1), .flags = ED_IDS_64};
    struct ed_request shifted = q;
    shifted.out++;
    for (int round = 0; round < 3; round++) {
        check(ed_gather(&shifted, 1, 0, ED_TEAM) == ED_DONE, "the outcome of a stream");
        check_rows(&shifted);
    }
    free(q.out);
    free(ids);
    return NULL;
}

static void run(int count, void *(*body)(void *))
{
    pthread_t threads[CROWD];
    for (int i = 0; i < count; i++)
        check(pthread_create(&threads[i], NULL, body, (void *)(uintptr_t)i) == 0, "a thread");
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    uint64_t state = 1;
    for (int t = 0; t < TABLES; t++) {
        const uint64_t bytes = ROWS * sizes[t];
        uint8_t *memory = malloc(bytes);
        for (uint64_t i = 0; i < bytes; i++)
            memory[i] = (uint8_t)next(&state);
        spans[t] = (struct ed_span){0, sizes[t], sizes[t]};
        tables[t] = (struct ed_table){.base = memory,
                                      .guard_begin = memory,
                                      .guard_end = memory + bytes,
                                      .rows = ROWS,
                                      .row_bytes = sizes[t],
                                      .spans = &spans[t],
                                      .span_count = 1,
                                      .rows_ahead = 12};
    }
    ed_team_configure(4, 20);
    run(THREADS, worker);
    ed_team_configure(4, 20);
    run(2, streamer);
    rounds = rounds / 10 + 1;
    run(CROWD, worker);
    for (int h = 0; h < HANDED_OVER; h++)
        finish(&handed[h], false);
    printf("all rows were right\n");
    return 0;
}
