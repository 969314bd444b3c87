// SPDX-License-Identifier: Apache-2.0
// kernels.cu, compiled for a CPU.
#include "device.h"

#ifndef KERNELS
#define KERNELS "../../../engramdax/cuda/kernels.cu"
#endif
#include KERNELS

#include "kernels.h"

extern "C" {
#include "../../../c/cuda.h"
}

static_assert(sizeof(Gather) == sizeof(struct ed_cuda_gather));
static_assert(offsetof(Gather, hot) == offsetof(struct ed_cuda_gather, hot));
static_assert(sizeof(Mix) == sizeof(struct ed_cuda_mix));
static_assert(offsetof(Mix, far_blocks) == offsetof(struct ed_cuda_mix, far_blocks));
static_assert(sizeof(Insert) == sizeof(struct ed_cuda_insert));

// A form of rows that tells of each part that it writes, and may be interrupted before it reads or writes one.
template <typename Form> struct Told : Form {
    template <typename Memory> static typename Form::Part read(const Gather &p, const u8 *row, u32 c)
    {
        perhaps_pause();
        return Form::template read<Memory>(p, row, c);
    }

    static void write(const typename Form::Part &part, u8 *out, u32 c)
    {
        perhaps_pause();
        written(out, c);
        Form::write(part, out, c);
    }
};

template <typename Parameters, void (*KERNEL)(const Parameters &)>
static std::function<void()> call_of_one(void **parameters)
{
    return [p = *(const Parameters *)parameters[0]] { KERNEL(p); };
}

template <void (*KERNEL)(const Gather &, const Mix &)> static std::function<void()> call_of_two(void **parameters)
{
    return [p = *(const Gather *)parameters[0], m = *(const Mix *)parameters[1]] { KERNEL(p, m); };
}

// Kernels take their parameters by value.
template <void (*KERNEL)(Gather, Mix)> static void by_value(const Gather &p, const Mix &m)
{
    KERNEL(p, m);
}

static void insert(const Insert &p)
{
    insert_hot(p);
}

#define TOLD(name, form)                                                                                               \
    {"gather_" #name, call_of_one<Gather, gather<Told<form>>>}, {"mixed_" #name, call_of_two<mixed<Told<form>>>},

static const Kernel KERNEL_LIST[] = {
    FOR_EACH_FORM(TOLD) //
    {"take_lane", call_of_two<by_value<take_lane>>},
    {"post_few", call_of_two<by_value<post_few>>},
    {"post_many", call_of_two<by_value<post_many>>},
    {"insert_hot", call_of_one<Insert, insert>},
};

const Kernel *kernel_named(const std::string &name)
{
    for (const Kernel &kernel : KERNEL_LIST)
        if (kernel.name == name)
            return &kernel;
    fail("kernels.cu has no kernel %s", name.c_str());
}

const size_t STATE_BYTES = sizeof(State), ENTRY_BYTES = sizeof(Entry);

void begin_state(uint8_t *state, uint64_t owner, uint32_t sequence)
{
    State &s = *(State *)state;
    s = {};
    s.owner = owner;
    s.sequence = sequence;
}

StateSeen look_at_state(const uint8_t *state)
{
    const State &s = *(const State *)state;
    const bool clean = !s.misses && !s.near && !s.staged && !s.posted && !s.left && !s.late;
    return {s.owner, s.sequence, s.late_chunks, s.busy_calls, s.owner == LATE, clean};
}
