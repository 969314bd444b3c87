// SPDX-License-Identifier: Apache-2.0
// What the calls of a trial share: a table, a lane, hot rows, and how they are used.
#ifndef EMULATOR_SETTING_H
#define EMULATOR_SETTING_H

#include <cstdint>
#include <vector>

#include "call.h"
#include "chance.h"
#include "memory.h"
#include "played_lane.h"

extern "C" {
#include "../../../c/cuda.h"
#include "../../../c/kernel.h"
}

enum Kind {
    ANY,
    HOST,      // for ids of the host
    LARGE,     // calls have more rows than one block posts
    SHREDDED,  // rounds have more chunks than a block looks at together
    CONTENDED, // calls fight for the lane, and leave it late
};
static const char *const KIND_NAMES[] = {"any", "host", "large", "shredded", "contended"};

// The kind of the trial of a seed.
Kind kind_of(uint64_t seed);

static inline uint64_t address(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

class Setting
{
  public:
    // That of a seed: of as many consecutive ones as there are kinds times forms, each is another pair. Begins the
    // trial of the GPU.
    explicit Setting(uint64_t seed);
    ~Setting();
    Setting(const Setting &) = delete;

    bool is_hit(int64_t row) const
    {
        return row >= 0 && !is_hot.empty() && is_hot[(size_t)row];
    }

    const Kind kind;
    const bool host = kind == HOST;                                 // the ids are the host's
    const bool registered = kind == CONTENDED || !chance.one_in(4); // the GPU may read the table
    const bool taken = kind == ANY && chance.one_in(8);             // another call has the lane, for ever
    const bool generous = kind != CONTENDED && chance.one_in(2);    // no deadline is missed
    const bool narrow = kind != ANY && kind != HOST;                // rows have few bytes

    static const uint64_t OTHER = 1ull << 40; // the token of that other call

    Memory memory;
    Rows rows = {};
    struct ed_cuda_gather plan = {};
    struct ed_cuda_route route = {};
    struct ed_cuda_lane lane = {};
    ed_lane_memory pinned = {};
    uint64_t *consumed = nullptr;
    uint32_t *failed = nullptr;
    uint8_t *state = nullptr;
    uint64_t *counters = nullptr; // NULL: there are no hot rows
    uint32_t total_columns = 0;   // of ids
    uint32_t most_rows = 0;       // of a call, a multiple of its columns
    uint64_t first_token = 0;     // of the lane, before the first launch

    static const uint32_t COUNTERS = 64;

  private:
    void make_table();
    void make_plan();
    uint32_t choose_rows() const;
    void make_pinned();
    void make_lane();
    void make_hot();

    ed_span span = {};
    ed_table table = {};
    std::vector<bool> is_hot; // [rows]
};

#endif
