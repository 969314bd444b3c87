// SPDX-License-Identifier: Apache-2.0
// A process that calls exit() with an open lane: whose memory is gone, as the driver's is, in a handler that was
// registered before the lane was opened. The poller must not look at it any more. With an argument a launch was
// captured, so that the poller does not nap.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "lane.h"

enum { BYTES = 1 << 20, ROWS = 64 };

static uint8_t *memory;

static void take_memory_away(void)
{
    munmap(memory, BYTES);
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
}

int main(int argc, char **argv)
{
    (void)argv;
    static uint8_t rows[ROWS * 64];
    static const struct ed_span span = {0, 64, 64};
    static const struct ed_table table = {.base = rows,
                                          .guard_begin = rows,
                                          .guard_end = rows + sizeof rows,
                                          .rows = ROWS,
                                          .row_bytes = 64,
                                          .spans = &span,
                                          .span_count = 1};
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || atexit(take_memory_away))
        return 2;
    const struct ed_lane_memory lane_memory = {.message = (uint64_t *)memory,
                                               .begun = (uint64_t *)(memory + 8),
                                               .finished = (uint32_t *)(memory + 128),
                                               .flags = (uint64_t *)(memory + 4096),
                                               .ids = (int32_t *)(memory + 8192),
                                               .staging = memory + 16384,
                                               .rows = ROWS,
                                               .chunks = ROWS / ED_LANE_CHUNK_UNIT,
                                               .staging_bytes = ROWS * 64};
    struct ed_lane *lane = ed_lane_open(&lane_memory, &table, 2, false);
    if (!lane)
        return 2;
    if (argc > 1)
        ed_lane_keep_awake(lane);
    __atomic_store_n(lane_memory.message, ED_LANE_MESSAGE(1, ED_LANE_CHUNK_UNIT, ROWS), __ATOMIC_RELEASE);
    exit(0);
}
