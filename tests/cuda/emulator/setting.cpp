// SPDX-License-Identifier: Apache-2.0
#include "setting.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "failure.h"
#include "gpu.h"
#include "happened.h"
#include "kernels.h"

namespace
{
const Form FORMS[] = {
    {"raw_1", 1, 0},   {"raw_2", 2, 0},        {"raw_4", 4, 0},         {"raw_8", 8, 0},
    {"raw_16", 16, 0}, {"float8_bf16", 16, 7}, {"float8_fp16", 16, 10},
};

// Bytes of a row: those of real tables, and what lies beside lines, warps and units.
const uint32_t WIDTHS[] = {1,    2,    3,    7,    8,    15,   16,   17,   31,   33,  64,  127,
                           128,  129,  256,  264,  272,  288,  320,  512,  513,  576, 768, 1000,
                           1008, 1023, 1024, 1025, 1040, 1792, 1793, 2048, 4096, 5120};

const uint32_t UNIT = ED_LANE_CHUNK_UNIT, BUCKET = 16;
const uint32_t ROWS_PER_BUCKET = 12; // more than hot.py's, so that lookups go on to further buckets
const uint32_t LARGE_ROWS = 8192;    // above FEW_ROWS of c/cuda.c: several blocks post them, whatever is hot
const uint32_t SLEEP_NS = 60'000;    // at most, of a worker or a thread of the GPU
const uint64_t EMPTY = ~0ull;

// Of consecutive seeds. Those of large calls take longest.
const Kind KINDS[] = {CONTENDED, SHREDDED, LARGE, HOST, ANY, ANY, ANY,  HOST,
                      CONTENDED, ANY,      ANY,   ANY,  ANY, ANY, HOST, ANY};
} // namespace

Kind kind_of(uint64_t seed)
{
    return KINDS[seed % std::size(KINDS)];
}

static const Form *form_of(uint64_t seed)
{
    return &FORMS[seed / std::size(KINDS) % std::size(FORMS)];
}

Setting::Setting(uint64_t seed) : kind(kind_of(seed))
{
    rows.form = form_of(seed);
    lane.shared_bytes = chance.one_in(6) ? 0 : 1 + chance.below(227 << 10);
    const bool sleepy = kind == CONTENDED || chance.one_in(8);
    gpu.begin(1 + chance.below(Gpu::MOST_BLOCKS), lane.shared_bytes, sleepy ? SLEEP_NS : 0);
    make_table();
    make_plan();
    most_rows = (choose_rows() / plan.out_columns + 1) * plan.out_columns;
    make_pinned();
    make_lane();
    if (!host && chance.one_in(3))
        make_hot();
}

Setting::~Setting()
{
    ed_lane_close(lane.lane);
}

void Setting::make_table()
{
    const uint32_t unit = rows.form->unit;
    if (rows.form->mantissa) {
        rows.dim = 256 * (1 + chance.below(3));
        rows.row_bytes = rows.dim + rows.dim / 32;
    } else {
        const uint32_t wide = chance.one_in(3) ? 1 + chance.below(1100) : chance.of(WIDTHS);
        const uint32_t width = narrow ? 1 + chance.below(32) : wide;
        rows.row_bytes = (width + unit - 1) / unit * unit;
    }
    rows.count = 1 + chance.below(600);
    const size_t bytes = rows.count * rows.row_bytes;
    uint8_t *base = memory.give<uint8_t>("the table", bytes, rows.dim ? 8 : unit);
    for (size_t i = 0; i < bytes; i++)
        base[i] = (uint8_t)chance.next();
    memory.seal(base);
    rows.base = base;
    span = {0, rows.row_bytes, rows.row_bytes};
    table.base = base;
    table.rows = rows.count;
    table.row_bytes = rows.row_bytes;
    table.spans = &span;
    table.span_count = 1;
}

// Which rows and columns are read.
void Setting::make_plan()
{
    plan.base = registered ? address(rows.base) : 0;
    plan.stride = plan.row_bytes = rows.row_bytes;
    plan.row_high = rows.count;
    plan.dim = rows.dim;
    if (chance.one_in(4)) {
        plan.row_low = chance.below(rows.count);
        plan.row_high = plan.row_low + 1 + chance.below(rows.count - (uint32_t)plan.row_low);
    }
    plan.columns = 1 + chance.below(chance.one_in(2) ? 3 : 24);
    plan.out_columns = plan.columns;
    total_columns = plan.columns;
    if (host)
        return; // columns were chosen, and zeros put in, on the host
    if (chance.one_in(4)) {
        plan.first_column = chance.below(4);
        total_columns += plan.first_column + chance.below(3);
    }
    if (chance.one_in(4))
        plan.out_columns += chance.below(5);
    if (chance.one_in(3)) {
        std::vector<int64_t> begins = {0, rows.count};
        while (begins.size() <= total_columns)
            begins.push_back(chance.below(rows.count + 1));
        std::sort(begins.begin(), begins.end());
        int64_t *given = memory.give<int64_t>("the beginnings of heads", begins.size());
        std::copy(begins.begin(), begins.end(), given);
        memory.seal(given);
        plan.head_begins = address(given);
        happened["ids within heads"]++;
    }
}

// The most rows of a call, such that a trial takes some 20 ms.
uint32_t Setting::choose_rows() const
{
    if (kind == CONTENDED)
        return 1 + chance.below(40);
    if (kind == LARGE)
        return LARGE_ROWS + 1 + chance.below(2500);
    if (kind == SHREDDED)
        return 1100 + chance.below(1500);
    const uint32_t turns = (rows.parts() + WARP_THREADS - 1) / WARP_THREADS; // of a warp, for a row
    const uint32_t most = std::min<uint32_t>(2000 / turns, (uint32_t)(1'500'000 / rows.row_bytes)) + 1;
    return chance.one_in(4) ? most : std::min(most, chance.one_in(3) ? 40u : 300u);
}

// The memory that the CPU and the GPU share, after so many rounds; and the state.
void Setting::make_pinned()
{
    const uint64_t unit_bytes = (UNIT * rows.row_bytes + ED_LANE_ALIGN - 1) / ED_LANE_ALIGN * ED_LANE_ALIGN;
    const uint32_t needed = (most_rows + UNIT - 1) / UNIT;
    const bool small = !host && registered && kind != SHREDDED && chance.one_in(2); // the rest is read directly
    const uint32_t units = small ? 1 + chance.below(needed) : needed + chance.below(4);
    pinned.rows = units * UNIT;
    pinned.chunks = units;
    pinned.staging_bytes = units * unit_bytes;
    pinned.message = memory.give<uint64_t>("the message", 1);
    pinned.begun = memory.give<uint64_t>("the word of launches that began", 1);
    pinned.finished = memory.give<uint32_t>("the word of finished rounds", 1);
    pinned.flags = memory.give<uint64_t>("the flags", units * ED_LANE_FLAG_STRIDE, ED_LANE_ALIGN);
    pinned.ids = memory.give<int32_t>("the mailbox", pinned.rows);
    pinned.staging = memory.give<uint8_t>("the staging buffer", pinned.staging_bytes, ED_LANE_ALIGN);
    memory.changes(pinned.ids);
    memory.changes(pinned.staging);
    failed = memory.give<uint32_t>("the word of failures", 1);
    consumed = memory.give<uint64_t>("the word of consumed rounds", 1);

    const uint32_t sequence = chance.one_in(3) ? UINT32_MAX - chance.below(3) : chance.below(1000);
    *pinned.message = sequence ? ED_LANE_MESSAGE(sequence, UNIT, 1) : 0;
    *pinned.begun = 0;
    *pinned.finished = sequence;
    std::fill_n(pinned.flags, units * ED_LANE_FLAG_STRIDE,
                chance.one_in(2) ? ED_LANE_FLAG(sequence, chance.below(units)) : 0);
    *failed = 0;
    *consumed = sequence;
    state = memory.give<uint8_t>("the state", STATE_BYTES, 16);
    begin_state(state, taken ? OTHER : 0, sequence);
    happened["sequence numbers near their end"] += sequence > 1000;
}

// What launches are told of the lane.
void Setting::make_lane()
{
    lane.threads = kind == SHREDDED ? 64 : 1 + chance.below(chance.one_in(2) ? 4 : 64);
    lane.lane = ed_lane_open(&pinned, &table, (int)std::min(lane.threads, MOST_LANE_THREADS), false);
    if (!lane.lane)
        fail("no lane can be opened");
    const uint32_t pace = 1 + chance.below(20), late = generous ? 0 : 1 + chance.below(kind == CONTENDED ? 2 : 8);
    play(lane.lane, &pinned, pace, late, SLEEP_NS);
    lane.take = address(kernel_named("take_lane"));
    lane.post_few = address(kernel_named("post_few"));
    lane.post_many = address(kernel_named("post_many"));
    lane.most_rows = registered ? most_rows : pinned.rows;
    if (registered && kind == ANY && chance.one_in(2))
        lane.from_rows = chance.below(2 * most_rows); // calls of fewer rows are direct
    lane.blocks = kind == SHREDDED ? 1 : 1 + chance.below(!narrow && chance.one_in(4) ? 40 : 3);
    lane.deadline_us = generous ? 1'000'000 : 1 + chance.below(kind == CONTENDED ? 5 : 20);
    lane.deadline_row = chance.below(20);
    lane.early = chance.one_in(2);
    lane.token = first_token = host ? *pinned.finished : chance.below(100);
    ed_cuda_mix &mix = lane.mix;
    mix.state = address(state);
    mix.local = address(memory.give<uint8_t>("the list of direct rows", lane.most_rows * ENTRY_BYTES, 16));
    mix.staged = address(memory.give<uint8_t>("the list of staged rows", pinned.rows * ENTRY_BYTES, 16));
    mix.ids = address(pinned.ids);
    mix.message = address(pinned.message);
    mix.begun = address(pinned.begun);
    mix.flags = address(pinned.flags);
    mix.finished = address(pinned.finished);
    mix.staging = address(pinned.staging);
    mix.failed = address(failed);
    mix.consumed = address(consumed);
    mix.capacity = pinned.rows;
    mix.patience_ns = kind == CONTENDED ? chance.below(100'000) : chance.one_in(2) ? 0 : chance.below(30'000);
    if (registered && !host) {
        mix.first_local = chance.one_in(3) ? 0 : chance.below(!narrow && chance.one_in(3) ? 2 * most_rows : 64);
        mix.local_of_64 = chance.one_in(3) ? 0 : chance.below(!narrow && chance.one_in(2) ? 65 : 8);
    }
    const std::string name = rows.form->name;
    route.direct = address(kernel_named("gather_" + name));
    route.mixed = address(kernel_named("mixed_" + name));
    route.lane = &lane;
    if (const char *reason = ed_cuda_open())
        fail("c/cuda.c finds no driver: %s", reason);
}

// The kernel that fills the hash table, and the rows that engramdax/cuda/hot.py fetches.
void Setting::make_hot()
{
    std::vector<uint32_t> ids(rows.count);
    std::iota(ids.begin(), ids.end(), 0);
    chance.shuffle(ids);
    const uint32_t count = 1 + chance.below(rows.count);
    const uint32_t buckets = chance.one_in(2) ? (count + ROWS_PER_BUCKET - 1) / ROWS_PER_BUCKET : count / BUCKET + 1;
    uint32_t *const listed = memory.give<uint32_t>("the ids of hot rows", count);
    std::copy_n(ids.begin(), count, listed);
    memory.seal(listed);
    uint64_t *const entries = memory.give<uint64_t>("the table of hot rows", buckets * BUCKET, 16);
    std::fill_n(entries, buckets * BUCKET, EMPTY);
    const struct ed_cuda_insert insert = {address(listed), address(entries), count, buckets};
    ed_cuda_launch(address(kernel_named("insert_hot")), (count + 255) / 256, 256, &insert, 0);
    while (!gpu.idle())
        gpu.step();
    memory.seal(entries);
    uint8_t *const hot = memory.give<uint8_t>("the hot rows", count * rows.row_bytes, 16);
    is_hot.resize(rows.count);
    for (uint32_t i = 0; i < count; i++) {
        std::copy_n(rows.base + ids[i] * rows.row_bytes, rows.row_bytes, hot + i * rows.row_bytes);
        is_hot[ids[i]] = true;
    }
    memory.seal(hot);
    counters = memory.give<uint64_t>("the counters of hits", COUNTERS);
    std::fill_n(counters, COUNTERS, 0);
    plan.hot = {address(entries), address(hot), address(counters), rows.row_bytes, buckets, 0};
    happened["hot rows"]++;
}
