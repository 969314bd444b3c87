// SPDX-License-Identifier: Apache-2.0
// Lanes: the CPU's half of the staged gather. A kernel writes row ids into a mailbox of pinned memory, the team of
// this process copies the rows into a staging buffer, chunk by chunk, and a later kernel, which waits for the chunks'
// flags, takes them from there. kernels.cu has the GPU's half.
//
// A lane has one round in flight. A round begins with its message, which the GPU stores after all ids (release), and
// which no thread of this process ever writes. Its chunks are tickets of the team (team.h), so a claim never goes
// backwards: who was slow to look takes a ticket of a later round, with that round's ids and place. A ticket stands for
// a place in the staging buffer, and threads have the same places in each round, whose lines are in their caches. Which
// chunk goes there is another matter: the GPU takes chunks in the order of their numbers, so in rounds of many chunks
// whoever has a ticket does the next one, and the GPU does not wait for the slowest thread's. A chunk's flag, which
// tells its place, is stored after its rows (release). `finished` is stored when no chunk of the round is claimed any
// more: a GPU that did not wait for all flags may post the next round after that alone, since a thread that was
// descheduled in the middle of a chunk still writes into the staging buffer.
//
// One thread, the poller, looks at the messages of all lanes, puts rounds up for the team, and does chunks, too. It
// calls neither CUDA nor Python and asks for no priority. When there was no round for a while and no launch is on its
// way, it naps between looks; not so where launches were captured, for a replay tells nobody.
#ifndef ENGRAMDAX_LANE_H
#define ENGRAMDAX_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernel.h"

enum {
    ED_LANES = 64,           // of a process
    ED_LANE_CHUNK_UNIT = 16, // rows of a chunk come in such units, which the GPU copies at once
    ED_LANE_MOST_UNITS = 255,
    ED_LANE_FLAG_STRIDE = 8, // words of 64 bits: each flag has a line of its own
    ED_LANE_ALIGN = 128,     // bytes, of each place in the staging buffer
    ED_LANE_UNREADABLE = 64, // ids that a lane remembers
};

// A message: the sequence number of the round, the rows of a chunk in units, and the number of rows.
#define ED_LANE_SEQUENCE(message) ((uint32_t)((message) >> 32))
#define ED_LANE_CHUNK_ROWS(message) ((uint32_t)((message) >> 24 & 0xff) * ED_LANE_CHUNK_UNIT)
#define ED_LANE_ROWS(message) ((uint32_t)((message) & 0xffffff))

#define ED_LANE_MESSAGE(sequence, chunk_rows, rows)                                                                    \
    ((uint64_t)(sequence) << 32 | (uint64_t)((chunk_rows) / ED_LANE_CHUNK_UNIT) << 24 | (rows))

// A flag: the sequence number of the round, and the place of the chunk, which begins at place * (bytes of a chunk,
// rounded up to ED_LANE_ALIGN).
#define ED_LANE_FLAG(sequence, place) ((uint64_t)(place) << 32 | (uint32_t)(sequence))

// The number of the next round; never 0, which stands at flags of chunks that were never used.
#define ED_LANE_AFTER(sequence) ((uint32_t)(sequence) == UINT32_MAX ? 1 : (uint32_t)(sequence) + 1)

// Pinned memory that both sides see.
struct ed_lane_memory {
    uint64_t *message;  // by the GPU
    uint64_t *begun;    // by the GPU: token of the launch that began last
    uint32_t *finished; // by the CPU: sequence number of the last round that nobody works at any more
    uint64_t *flags;    // by the CPU: [chunks * ED_LANE_FLAG_STRIDE], ED_LANE_FLAG when a chunk is there
    int32_t *ids;       // by the GPU: [rows]
    uint8_t *staging;   // by the CPU
    uint32_t rows;      // most of a round
    uint32_t chunks;    // flags that there are
    uint64_t staging_bytes;
};

struct ed_lane;

// Open a lane for rows of `table`, done by at most `threads` threads, the poller included; `shared`: fewer where other
// processes have lanes, too (ed_lanes_share). The memory and the table stay until it is closed. NULL where there are
// ED_LANES already or no thread can be had.
struct ed_lane *ed_lane_open(const struct ed_lane_memory *memory, const struct ed_table *table, int threads,
                             bool shared);

// Close it, after the GPU has done all that was launched: wait for what the team does for it. A forked child closes
// nothing of its parent's.
void ed_lane_close(struct ed_lane *lane);

// Tell that a round is about to come, with the launch of that token (0: at once): whoever sleeps wakes up meanwhile,
// and stays awake until it begins. Costs a clock's reading.
void ed_lane_expect(struct ed_lane *lane, uint64_t token);

// Tell that rounds may come at any time, since a launch was captured.
void ed_lane_keep_awake(struct ed_lane *lane);

// Number of rows that could not be read since the last call, and were given as zeros; the ids of the first of them in
// `ids`, ED_LANE_UNREADABLE at most, -1 for one that is just being noted.
uint64_t ed_lane_unreadable(struct ed_lane *lane, int64_t *ids);

// Whether there are such rows.
bool ed_lane_troubled(const struct ed_lane *lane);

// What the lane has served so far, and how long rounds took from the message to their last row, all together.
struct ed_lane_served {
    uint64_t rounds, rows, busy_ns;
};
void ed_lane_served(const struct ed_lane *lane, struct ed_lane_served *ret);

// For tests: one chunk in `one_in` sleeps for `microseconds` before it copies anything; 0: none.
void ed_lane_disturb(struct ed_lane *lane, uint32_t one_in, uint32_t microseconds);

// Share the cores with the other processes that hold a POSIX lock on one of the first `bytes` bytes of file `fd`, which
// stays open: the poller counts them every second.
void ed_lanes_share(int fd, int bytes);

// How many processes share the cores, this one included.
int ed_lanes_processes(void);

// How long the poller, and as many workers as a lane may have, stay awake after a round or a launch, in microseconds.
void ed_lanes_configure(int linger_us);

#endif
