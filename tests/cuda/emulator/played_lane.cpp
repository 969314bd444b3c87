// SPDX-License-Identifier: Apache-2.0
#include "played_lane.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "chance.h"
#include "failure.h"
#include "gpu.h"
#include "happened.h"

namespace
{
const int JUNK = 0xC3;
const uint32_t NONE = UINT32_MAX;

struct Worker {
    uint32_t chunk = NONE, place = NONE;
    uint32_t next = 0; // row of the chunk
    uint64_t asleep_until = 0;
    bool stuck = false; // until the GPU has nothing to do any more
};
} // namespace

struct ed_lane {
    ed_lane_memory memory;
    const ed_table *table;
    std::vector<Worker> workers;
    uint32_t pace, late, sleep_ns;
    uint32_t sequence;              // of the last round
    bool working;                   // at it
    uint32_t rows, chunk_rows;      // of it
    uint32_t chunks, claimed, done; // of it
    std::vector<uint32_t> places;   // of its chunks
    struct ed_lane_served served;

    uint64_t message() const
    {
        return __atomic_load_n(memory.message, __ATOMIC_ACQUIRE);
    }

    uint64_t chunk_bytes() const
    {
        return (chunk_rows * table->row_bytes + ED_LANE_ALIGN - 1) / ED_LANE_ALIGN * ED_LANE_ALIGN;
    }

    uint32_t rows_of(uint32_t chunk) const
    {
        const uint32_t left = rows - chunk * chunk_rows;
        return left < chunk_rows ? left : chunk_rows;
    }
};

static void begin_round(ed_lane *lane, uint64_t message)
{
    const uint32_t sequence = ED_LANE_SEQUENCE(message);
    if (sequence != ED_LANE_AFTER(lane->sequence))
        fail("round %u is posted after round %u", sequence, lane->sequence);
    lane->sequence = sequence;
    lane->rows = ED_LANE_ROWS(message);
    lane->chunk_rows = ED_LANE_CHUNK_ROWS(message);
    if (lane->rows == 0 || lane->rows > lane->memory.rows || lane->chunk_rows == 0)
        fail("a round of %u rows in chunks of %u is posted; the mailbox holds %u", lane->rows, lane->chunk_rows,
             lane->memory.rows);
    lane->chunks = (lane->rows + lane->chunk_rows - 1) / lane->chunk_rows;
    const uint32_t last = lane->chunks - 1;
    if (lane->chunks > lane->memory.chunks ||
        last * lane->chunk_bytes() + lane->rows_of(last) * lane->table->row_bytes > lane->memory.staging_bytes)
        fail("the staging buffer does not hold %u chunks", lane->chunks);
    lane->places.resize(lane->chunks);
    std::iota(lane->places.begin(), lane->places.end(), 0u);
    // The last place has room for the last chunk's rows, perhaps not for a whole chunk.
    if (lane->chunks * lane->chunk_bytes() <= lane->memory.staging_bytes)
        for (uint32_t i = last; i > 0; i--)
            std::swap(lane->places[i], lane->places[chance.below(i + 1)]);
    happened["rounds of chunks in other places"] += !std::is_sorted(lane->places.begin(), lane->places.end());
    lane->claimed = lane->done = 0;
    lane->working = true;
    happened["rounds of more than 64 chunks"] += lane->chunks > 64;
    lane->served.rounds++;
    lane->served.rows += lane->rows;
}

// A step of a worker: it claims a chunk, sleeps, or copies some of its rows.
static void work(ed_lane *lane, Worker &worker)
{
    if (worker.chunk == NONE) {
        if (lane->claimed == lane->chunks)
            return;
        worker = {lane->claimed, lane->places[lane->claimed], 0, 0, false};
        lane->claimed++;
        memset(lane->memory.staging + worker.place * lane->chunk_bytes(), JUNK,
               lane->rows_of(worker.chunk) * lane->table->row_bytes);
        if (lane->late && chance.one_in(lane->late)) {
            worker.asleep_until = gpu.clock + chance.below(lane->sleep_ns);
            worker.stuck = chance.one_in(8);
        }
        return;
    }
    if (gpu.clock < worker.asleep_until || (worker.stuck && !gpu.idle()))
        return;
    const uint32_t rows = lane->rows_of(worker.chunk), first = worker.chunk * lane->chunk_rows;
    const uint64_t row_bytes = lane->table->row_bytes;
    uint8_t *const staged = lane->memory.staging + worker.place * lane->chunk_bytes();
    for (uint32_t count = 1 + chance.below(2 * rows); count && worker.next < rows; count--, worker.next++) {
        const int32_t id = lane->memory.ids[first + worker.next];
        uint8_t *const to = staged + worker.next * row_bytes;
        if (id >= 0 && (uint64_t)id < lane->table->rows)
            memcpy(to, lane->table->base + (uint64_t)id * row_bytes, row_bytes);
        else if (id == -1)
            memset(to, 0, row_bytes);
        else
            fail("row %u of a round has id %d", first + worker.next, id);
    }
    if (worker.next == rows) {
        __atomic_store_n(&lane->memory.flags[worker.chunk * ED_LANE_FLAG_STRIDE],
                         ED_LANE_FLAG(lane->sequence, worker.place), __ATOMIC_RELEASE);
        worker.chunk = NONE;
        lane->done++;
        gpu.progress();
    }
}

const uint32_t MOST_LANE_THREADS = 64;

void play(ed_lane *lane, const ed_lane_memory *, uint32_t pace, uint32_t late, uint32_t sleep_ns)
{
    lane->pace = pace;
    lane->late = late;
    lane->sleep_ns = sleep_ns;
}

void step(ed_lane *lane)
{
    if (!chance.one_in(lane->pace))
        return;
    const uint64_t message = lane->message();
    const bool posted = ED_LANE_SEQUENCE(message) != lane->sequence;
    if (lane->working && lane->done == lane->chunks && (posted || chance.one_in(4))) {
        __atomic_store_n(lane->memory.finished, lane->sequence, __ATOMIC_RELEASE);
        lane->working = false;
    }
    if (lane->working && posted)
        fail("a round is posted while %u of %u chunks of the round before are not there", lane->chunks - lane->done,
             lane->chunks);
    if (posted)
        begin_round(lane, message);
    if (lane->working)
        work(lane, lane->workers[chance.below((uint32_t)lane->workers.size())]);
}

bool resting(const ed_lane *lane)
{
    return !lane->working && ED_LANE_SEQUENCE(lane->message()) == lane->sequence;
}

ed_lane *ed_lane_open(const ed_lane_memory *memory, const ed_table *table, int threads, bool)
{
    ed_lane *lane = new ed_lane{};
    lane->memory = *memory;
    lane->table = table;
    lane->workers.resize((size_t)threads);
    lane->sequence = ED_LANE_SEQUENCE(lane->message());
    lane->pace = 1;
    return lane;
}

void ed_lane_close(ed_lane *lane)
{
    delete lane;
}

// It sees messages by itself.
void ed_lane_expect(ed_lane *, uint64_t)
{
}

void ed_lane_keep_awake(ed_lane *)
{
}

// All rows of a trial can be read.
bool ed_lane_troubled(const ed_lane *)
{
    return false;
}

void ed_lane_served(const ed_lane *lane, struct ed_lane_served *ret)
{
    *ret = lane->served;
}
