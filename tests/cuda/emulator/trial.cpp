// SPDX-License-Identifier: Apache-2.0
#include "trial.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "chance.h"
#include "failure.h"
#include "gpu.h"
#include "happened.h"
#include "kernels.h"
#include "setting.h"

// One that is under way: calls in their setting.
class Trial : Setting
{
  public:
    explicit Trial(uint64_t seed);
    ~Trial();

    void run();
    bool note(const uint8_t *row, uint32_t part);

  private:
    int64_t make_id(uint32_t column, bool wide, int64_t *wanted) const;
    void make_call();
    int try_launch(uint32_t number);
    void launch(uint32_t number);
    void step_all();
    bool is_mixed(const Call &call) const;
    uint64_t staged_of(const Call &call) const;
    void check_lane() const;
    void check_hits() const;
    void note_happened() const;

    // Ids as a call is given them.
    struct Ids {
        const void *at;
        uint32_t stride;
        bool wide;
    };

    const uint32_t streams = kind == CONTENDED ? 2 : 1 + chance.below(2);
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<Ids> ids_of; // [calls]
    bool told = false;       // that rows could not be had
    bool was_late = false;   // whether the lane was, at the last step
};

static Trial *current;

Trial::Trial(uint64_t seed) : Setting(seed)
{
    current = this;
}

Trial::~Trial()
{
    current = nullptr;
}

void written(const uint8_t *row, uint32_t part)
{
    gpu.progress();
    if (!current->note(row, part))
        fail("a row is written to %p, which is no output", (const void *)row);
}

bool Trial::note(const uint8_t *row, uint32_t part)
{
    return std::any_of(calls.begin(), calls.end(), [&](const auto &call) { return call->note(row, part); });
}

// An id at random, and the row that it asks for.
int64_t Trial::make_id(uint32_t column, bool wide, int64_t *wanted) const
{
    const int64_t *begins = (const int64_t *)(uintptr_t)plan.head_begins;
    const int64_t begin = begins ? begins[column] : 0, end = begins ? begins[column + 1] : rows.count;
    int64_t id = begin < end ? chance.below((uint32_t)(end - begin)) : 0;
    if (chance.one_in(8)) {
        const int64_t bad[] = {-1, end - begin, end - begin + 2, INT32_MAX, id + (1ll << 32)};
        id = bad[chance.below(wide ? 5 : 4)];
    }
    const int64_t row = id + begin;
    *wanted = id >= 0 && row < end && row >= plan.row_low && row < plan.row_high ? row : -1;
    return id;
}

void Trial::make_call()
{
    const uint32_t most = most_rows / plan.out_columns,
                   outer = narrow || chance.one_in(3) ? most : 1 + chance.below(most);
    const uint32_t stride = host ? plan.out_columns : total_columns + chance.below(3);
    const bool wide = !host && chance.one_in(2);
    const uint32_t count = (outer - 1) * stride + (host ? stride : total_columns);
    int64_t *const ids_64 = wide ? memory.give<int64_t>("the ids", count) : nullptr;
    int32_t *const ids_32 = wide ? nullptr : memory.give<int32_t>("the ids", count);
    std::vector<int64_t> wanted(outer * plan.out_columns, -1);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t t = i / stride, c = i % stride, column = c - plan.first_column;
        int64_t row = -1, id = -1;
        if (c < total_columns)
            id = make_id(c, wide, &row);
        if (column < plan.columns)
            wanted[t * plan.out_columns + column] = row;
        if (host)
            id = row;
        if (wide)
            ids_64[i] = id;
        else
            ids_32[i] = (int32_t)id;
    }
    const void *const ids = wide ? (const void *)ids_64 : ids_32;
    memory.seal(ids);
    ids_of.push_back({ids, stride, wide});
    calls.push_back(std::make_unique<Call>(memory, rows, std::move(wanted), plan.out_columns));
}

int Trial::try_launch(uint32_t number)
{
    const Ids &ids = ids_of[number];
    const Call &call = *calls[number];
    const uint64_t out = address(call.out), stream = number % streams;
    const int64_t stride = (int64_t)call.outer_stride, column_stride = (int64_t)call.column_stride;
    if (host)
        return ed_cuda_gather_host(&plan, &route, (const int32_t *)ids.at, call.outer, out, stride, column_stride,
                                   stream);
    return ed_cuda_gather(&plan, &route, address(ids.at), ids.wide, ids.stride, call.outer, out, stride, column_stride,
                          stream);
}

void Trial::launch(uint32_t number)
{
    int result;
    while ((result = try_launch(number)) != 0) {
        if (result == ED_CUDA_TROUBLE) {
            if (!*failed)
                fail("a launch tells of rows that could not be had, though all could");
            told = true;
            *failed = 0;
        } else if (result != ED_CUDA_BUSY || !host) {
            fail("a launch gives %d", result);
        }
        step_all();
    }
}

void Trial::step_all()
{
    gpu.step();
    step(lane.lane);
    const bool late = look_at_state(state).late;
    happened["lanes taken after a late round"] += was_late && !late;
    was_late = late;
}

void Trial::run()
{
    const uint32_t count = kind == CONTENDED ? 8 : 1 + chance.below(narrow ? 2 : 5);
    trying += " (" + std::to_string(count) + (host ? " calls with ids of the host, " : " calls, ") + rows.form->name +
              " of rows of " + std::to_string(rows.row_bytes) + " bytes" +
              (registered ? "" : " that the GPU cannot read") + ")";
    for (uint32_t i = 0; i < count; i++)
        make_call();
    const bool slowly = chance.one_in(3);
    for (uint32_t i = 0; i < count; i++) {
        launch(i);
        for (uint32_t steps = slowly ? chance.below(3000) : chance.below(20); steps; steps--)
            step_all();
    }
    while (!gpu.idle() || !resting(lane.lane))
        step_all();
    told |= *failed != 0;
    const StateSeen seen = look_at_state(state);
    // Where the GPU cannot read rows by itself, those that do not come in time, or have no lane, are zeros.
    const bool zeros = !registered && (seen.late_chunks || seen.busy_calls);
    uint32_t missing = 0;
    for (const auto &call : calls)
        missing += call->check(zeros);
    if (missing && !told)
        fail("%u rows are zeros, which nobody was told of", missing);
    if (told && !zeros)
        fail("rows could not be had, it is told, though all could");
    check_lane();
    check_hits();
    note_happened();
}

// Whether a call goes by way of the lane.
bool Trial::is_mixed(const Call &call) const
{
    return host || call.wanted.size() >= lane.from_rows;
}

// How many rows of a call the CPU has to bring: as `struct Mix` of engramdax/cuda/mix.py says.
uint64_t Trial::staged_of(const Call &call) const
{
    if (host)
        return call.wanted.size();
    uint64_t missed = 0, staged = 0;
    for (const int64_t row : call.wanted) {
        if (row < 0 || is_hit(row))
            continue;
        staged += missed >= lane.mix.first_local && (missed - lane.mix.first_local) % 64 >= lane.mix.local_of_64;
        missed++;
    }
    return std::min<uint64_t>(staged, pinned.rows);
}

// What the lane was asked for, and what is left in it.
void Trial::check_lane() const
{
    const StateSeen seen = look_at_state(state);
    if (!seen.clean)
        fail("the lane's state is not clean");
    if (seen.owner != (taken ? OTHER : 0) && !(seen.late && seen.late_chunks))
        fail("the lane belongs to %llx at last", (unsigned long long)seen.owner);
    if (generous && seen.late_chunks)
        fail("%u chunks are late, before their deadline", seen.late_chunks);
    const uint32_t sequence = ED_LANE_SEQUENCE(*pinned.message);
    if (*pinned.finished != sequence)
        fail("round %u is finished, %u was posted last", *pinned.finished, sequence);
    if ((host ? *consumed : seen.sequence) != sequence)
        fail("the GPU is at another round than %u, which was posted last", sequence);
    if (streams == 1 && !host && *pinned.begun != lane.token && lane.token != first_token)
        fail("the launch of token %llu did not begin", (unsigned long long)lane.token);
    uint64_t rounds = 0, staged = 0;
    for (const auto &call : calls) {
        const uint64_t share = is_mixed(*call) ? staged_of(*call) : 0;
        rounds += share > 0;
        staged += share;
    }
    struct ed_lane_served served;
    ed_lane_served(lane.lane, &served);
    if (!seen.busy_calls && (served.rounds != rounds || served.rows != staged))
        fail("the CPU was asked for %llu rows in %llu rounds, not for %llu in %llu", (unsigned long long)served.rows,
             (unsigned long long)served.rounds, (unsigned long long)staged, (unsigned long long)rounds);
}

void Trial::check_hits() const
{
    // A call that has no lane and cannot read the table looks for no row at all.
    if (!counters || (!registered && look_at_state(state).busy_calls))
        return;
    uint64_t hits = 0;
    for (const auto &call : calls)
        hits += (uint64_t)std::count_if(call->wanted.begin(), call->wanted.end(), [&](int64_t r) { return is_hit(r); });
    const uint64_t counted = std::accumulate(counters, counters + COUNTERS, uint64_t{0});
    if (counted != hits)
        fail("%llu hits are counted, there were %llu", (unsigned long long)counted, (unsigned long long)hits);
}

void Trial::note_happened() const
{
    const StateSeen seen = look_at_state(state);
    happened["late chunks"] += seen.late_chunks;
    happened["calls that found the lane in use"] += seen.busy_calls;
    happened["trials without a registered table"] += !registered;
    happened["trials with a lane in use for ever"] += taken;
    happened["trials with ids of the host"] += host;
    happened["rows that could not be had"] += told;
    happened["calls"] += calls.size();
    for (const auto &call : calls) {
        const uint64_t staged = is_mixed(*call) ? staged_of(*call) : 0;
        happened["direct calls"] += !is_mixed(*call);
        happened["staged rows"] += staged;
        happened["calls without a staged row"] += is_mixed(*call) && staged == 0;
        happened["calls that fill the staging buffer"] += staged == pinned.rows;
        happened["rows"] += call->wanted.size();
    }
}

void run_trial(uint64_t seed)
{
    trying = "seed " + std::to_string(seed);
    chance.begin(seed);
    Trial trial(seed);
    trial.run();
}
