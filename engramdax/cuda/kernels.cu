// SPDX-License-Identifier: Apache-2.0
// Gather of rows on the GPU, out of registered host memory and of hot rows in the GPU's own. Compiled by NVRTC for
// the GPU at hand; needs no headers. The parameter structs stand again in c/cuda.h.
//
// Random rows of a table far larger than the GPU's translation reach cost one address translation each, whatever
// the kernel: so a warp takes one row in one piece, asks for all of it at once, and nothing else matters much.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef __CUDACC__
// What C++ has no words for, and PTX has. tests/cuda/emulator/device.h has the same for a CPU, on which tests run this
// file.

struct Bf16 {
    static __device__ __forceinline__ u32 pack(float low, float high)
    {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
};

struct Fp16 {
    static __device__ __forceinline__ u32 pack(float low, float high)
    {
        u32 both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
};

static __device__ __forceinline__ u32 load_acquire(const u32 *from)
{
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

static __device__ __forceinline__ u64 load_acquire(const u64 *from)
{
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

static __device__ __forceinline__ void store_release(u64 *to, u64 value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

static __device__ __forceinline__ u32 load_acquire_block(const u32 *from)
{
    u32 value;
    const u32 at = (u32)__cvta_generic_to_shared(from);
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}

static __device__ __forceinline__ void store_release_block(u32 *to, u32 value)
{
    const u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ u64 clock_ns()
{
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// The kernel after this one may be put on the GPU: there it waits until this one is done.
static __device__ __forceinline__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Wait for the kernel before, where this one may have been started during it.
static __device__ __forceinline__ void wait_for_last()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The shared memory that the kernel was launched with.
static __device__ __forceinline__ uint4 *launched_shared()
{
    extern __shared__ uint4 parcels[];
    return parcels;
}

// Begin to copy 16 bytes of the staging buffer to shared memory, past the first-level cache.
static __device__ __forceinline__ void bring(uint4 *to, const uint4 *from)
{
    const u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

// Wait until what this thread began to bring is there, for itself.
static __device__ __forceinline__ void wait_for_brought()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Let so many threads of this block meet, at a barrier of their own: the others never come by.
static __device__ __forceinline__ void meet(u32 threads)
{
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}
#endif

struct Hot {
    const u64 *entries; // [buckets][16]: row id in the high half, place in `rows` in the low one
    const u8 *rows;     // [count][row_stride]
    u64 *counters;      // [64]: hits
    u64 row_stride;
    u32 buckets;        // 0: there is no hot list
    u32 spare;
};

struct Gather {
    const u8 *base; // row 0
    u64 stride;     // bytes from row to row
    u64 row_bytes;
    i64 row_low, row_high;   // only these rows are read, others give zeros
    const i64 *head_begins;  // ids count within heads; NULL: within the table
    u32 first_column, columns, out_columns; // columns of ids that are read; the rest of `out` gets zeros
    u32 ids_64;
    const void *ids; // [outer][*], ids_stride elements from one outer to the next
    i64 ids_stride;
    u32 outer, dim;  // dim: float8 values of a row
    u8 *out;
    i64 out_stride;        // bytes from one outer to the next
    i64 out_column_stride; // bytes from one row to the next
    struct Hot hot;
};

static constexpr u32 WARP = 32, BUCKET = 16, COUNTERS = 64;
static constexpr u64 EMPTY = ~0ull;
static constexpr u32 NOT_HOT = ~0u; // no place of a hot row

// The place of row (t, column) in the output, of which i = t * out_columns + column.
static __device__ __forceinline__ u8 *place_of(const Gather &p, u32 i)
{
    const u32 t = i / p.out_columns, column = i - t * p.out_columns;
    return p.out + (i64)t * p.out_stride + (i64)column * p.out_column_stride;
}

static __device__ __forceinline__ u32 bucket_of(u32 id, u32 buckets)
{
    u32 h = id * 2654435761u; // Knuth's constant, then the high bits folded in, as neighbours differ in low ones
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (u32)((u64)h * buckets >> 32);
}

// The hot copy of a row, or NULL; asked by a whole warp.
static __device__ __forceinline__ const u8 *find_hot(const Hot &hot, i64 row, u32 lane)
{
    u32 bucket = bucket_of((u32)row, hot.buckets);
    for (;;) {
        const u64 entry = lane < BUCKET ? __ldg(hot.entries + (u64)bucket * BUCKET + lane) : 0;
        const u32 match = __ballot_sync(~0u, lane < BUCKET && entry != EMPTY && (i64)(entry >> 32) == row);
        if (match) {
            const u32 place = (u32)__shfl_sync(~0u, entry, __ffs(match) - 1);
            return hot.rows + (u64)place * hot.row_stride;
        }
        if (__ballot_sync(~0u, lane < BUCKET && entry == EMPTY))
            return nullptr; // an entry goes to the next bucket only from a full one
        bucket = bucket + 1 == hot.buckets ? 0 : bucket + 1;
    }
}

// The row that position (t, column) asks for, -1 for a row of zeros.
static __device__ __forceinline__ i64 row_of(const Gather &p, u32 t, u32 column)
{
    if (column >= p.columns)
        return -1;
    const u32 c = p.first_column + column;
    const i64 at = (i64)t * p.ids_stride + c;
    i64 id = p.ids_64 ? ((const i64 *)p.ids)[at] : (i64)((const int *)p.ids)[at];
    if (p.head_begins) {
        const i64 begin = p.head_begins[c];
        if (id < 0 || id >= p.head_begins[c + 1] - begin)
            return -1;
        id += begin;
    }
    return id >= p.row_low && id < p.row_high ? id : -1;
}

// How memory is read: the pool and hot rows never change while a kernel reads them, so that caches need not be asked
// whether they are fresh; staging buffers do, and so does what was brought from there into shared memory.
struct Still {
    template <typename T> static __device__ __forceinline__ T load(const T *from)
    {
        return __ldg(from);
    }
};

struct Fresh {
    template <typename T> static __device__ __forceinline__ T load(const T *from)
    {
        return *from;
    }
};

// A form of rows says in how many parts a warp copies one, a part to a lane, and how a part is read and written.
template <typename Unit> struct Raw {
    typedef Unit Part;

    static __device__ __forceinline__ u32 parts(const Gather &p)
    {
        return (u32)(p.row_bytes / sizeof(Unit));
    }

    template <typename Memory>
    static __device__ __forceinline__ Part read(const Gather &, const u8 *row, u32 c)
    {
        return Memory::load((const Unit *)row + c);
    }

    static __device__ __forceinline__ void write(const Part &part, u8 *out, u32 c)
    {
        ((Unit *)out)[c] = part;
    }
};

#if __CUDA_ARCH__ >= 890
// Two values of float8_e4m3fn, in the low 16 bits: float16 has them all.
static __device__ __forceinline__ void from_e4m3(u32 both, float &low, float &high)
{
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)both));
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(low), "=f"(high)
        : "r"(halves));
}
#else
// float8_e4m3fn: the seven low bits moved into a float's exponent and mantissa are off by a power of two, also for
// subnormals; nothing is flushed to zero here.
static __device__ __forceinline__ float from_e4m3(u32 byte)
{
    const u32 low = byte & 0x7f;
    const float size = low == 0x7f ? __int_as_float(0x7fffffff) : __uint_as_float(low << 20) * 0x1p120f;
    return __uint_as_float(__float_as_uint(size) | (byte & 0x80) << 24);
}

static __device__ __forceinline__ void from_e4m3(u32 both, float &low, float &high)
{
    low = from_e4m3(both & 0xff);
    high = from_e4m3(both >> 8 & 0xff);
}
#endif

// float8_e8m0fnu as serving engines read it: 2^(byte - 127), which for byte 0 is a subnormal, and 255 an infinity.
static __device__ __forceinline__ float from_e8m0(u32 byte)
{
    return __uint_as_float(byte ? byte << 23 : 0x00400000u);
}

// dim values, then a scale for each 32 of them; dim is a multiple of 32, rows lie at multiples of 8 bytes.
template <typename Half> struct Float8 {
    struct Part {
        u64 values;
        u32 exponent;
    };

    static __device__ __forceinline__ u32 parts(const Gather &p)
    {
        return p.dim / 8;
    }

    template <typename Memory>
    static __device__ __forceinline__ Part read(const Gather &p, const u8 *row, u32 c)
    {
        return {Memory::load((const u64 *)row + c), Memory::load(row + p.dim + c / 4)};
    }

    // Of no values, zeros come out, whatever 2^-127 is.
    static __device__ __forceinline__ void write(const Part &part, u8 *out, u32 c)
    {
        const float scale = from_e8m0(part.exponent);
        uint4 halves;
        u32 *h = &halves.x;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float low, high;
            from_e4m3((u32)(part.values >> (16 * i)), low, high);
            h[i] = Half::pack(low * scale, high * scale);
        }
        ((uint4 *)out)[c] = halves;
    }
};

// Copy the first `count` of COUNT rows, or all, by a warp; where there is no row, zeros. All are read before any is
// written.
template <typename Form, typename Memory, u32 COUNT>
static __device__ __forceinline__ void emit_all(const Gather &p, const u8 *const (&rows)[COUNT],
                                                u8 *const (&outs)[COUNT], u32 count, u32 lane)
{
    for (u32 c = lane; c < Form::parts(p); c += WARP) {
        typename Form::Part part[COUNT];
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            part[k] = {};
            if (k < count && rows[k])
                part[k] = Form::template read<Memory>(p, rows[k], c);
        }
#pragma unroll
        for (u32 k = 0; k < COUNT; k++)
            if (k < count)
                Form::write(part[k], outs[k], c);
    }
}

// Copy one row: every lane asks for its first two parts before it writes any, so rows of up to 1 KiB are one round
// trip.
template <typename Form, typename Memory>
static __device__ __forceinline__ void emit(const Gather &p, const u8 *row, u8 *out, u32 lane)
{
    const u32 parts = Form::parts(p);
    for (u32 c = lane; c < parts; c += 2 * WARP) {
        const bool more = c + WARP < parts;
        typename Form::Part a = {}, b = {};
        if (row) {
            a = Form::template read<Memory>(p, row, c);
            if (more)
                b = Form::template read<Memory>(p, row, c + WARP);
        }
        Form::write(a, out, c);
        if (more)
            Form::write(b, out, c + WARP);
    }
}

template <typename Form> static __device__ __forceinline__ void gather(const Gather &p)
{
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * (blockDim.x / WARP);
    const u32 total = p.outer * p.out_columns;
    u32 hits = 0;
    for (u32 i = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; i < total; i += warps) {
        const u32 t = i / p.out_columns, column = i - t * p.out_columns;
        const i64 row = row_of(p, t, column);
        const u8 *from = nullptr;
        if (row >= 0) {
            from = p.hot.buckets ? find_hot(p.hot, row, lane) : nullptr;
            hits += from != nullptr;
            from = from ? from : p.base + (u64)row * p.stride;
        }
        emit<Form, Still>(p, from, p.out + (i64)t * p.out_stride + (i64)column * p.out_column_stride, lane);
    }
    if (p.hot.buckets && lane == 0 && hits)
        atomicAdd(p.hot.counters + (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) % COUNTERS, (u64)hits);
}

// The forms of rows, each with the end of its kernels' names.
#define FOR_EACH_FORM(KERNEL)                                                                                      \
    KERNEL(raw_1, Raw<u8>)                                                                                         \
    KERNEL(raw_2, Raw<unsigned short>)                                                                             \
    KERNEL(raw_4, Raw<u32>)                                                                                        \
    KERNEL(raw_8, Raw<u64>)                                                                                        \
    KERNEL(raw_16, Raw<uint4>)                                                                                     \
    KERNEL(float8_bf16, Float8<Bf16>)                                                                              \
    KERNEL(float8_fp16, Float8<Fp16>)

#define GATHER(name, form)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) gather_##name(const __grid_constant__ Gather p)              \
    {                                                                                                              \
        gather<form>(p);                                                                                           \
    }

FOR_EACH_FORM(GATHER)

// The mix: a gather whose rows come on three ways. Hot rows and rows of zeros are near; some of the pool's are read
// directly (`local`); the others are staged: they come by way of the CPU team, through a lane (c/lane.h). Three kernels
// follow each other on the stream: `take` asks for the lane, `post` divides the rows and sends the message (one kernel
// for few rows where none are hot), `mixed` copies.
//
// A lane has one round in flight, and belongs to the call whose token its owner word holds, from `take` until the last
// block of `mixed` leaves. A call that finds it taken reads all its rows directly. Where a chunk did not come in time,
// `mixed` reads its rows directly, too, and leaves the lane LATE: the next call has it only when the CPU says that
// nobody works at the round any more, since what is still on its way would be written among the new rows.
// lane.py gives it room, all zeros, and reads the counts at their places.
struct State {
    u64 owner; // a call's token, 0, or LATE
    u32 sequence;
    u32 misses, near, staged; // rows of this round: of the pool, not of the pool, and of the pool by way of the CPU
    u32 posted, left;         // blocks
    u32 late;                 // whether a chunk of this round was
    u32 late_chunks, busy_calls; // counts, for those who look
};

// A row that `post` has found for `mixed`; lane.py gives room for them.
struct Entry {
    const u8 *from; // NULL: a row of zeros
    u32 to, spare;  // number of the row in the output
};

struct Mix {
    State *state;
    // `local`: rows of the pool from its begin on, and, from its end (row number `outer * out_columns` - 1) back, those
    // that are near: hot ones and rows of zeros.
    Entry *local, *staged;
    int *ids; // the mailbox, and its message
    u64 *message, *begun; // `begun` tells the host that a launch is no longer in its queue
    const u64 *flags;
    const u32 *finished;
    const u8 *staging;
    u32 *failed; // set where rows could not be had at all
    u64 token;
    u64 deadline_ns, patience_ns; // for a chunk, from this kernel's start; for a lane
    u32 capacity;      // rows of the staging buffer
    u32 chunk_rows;    // multiple of CHUNK_UNIT
    u32 chunk_stride;  // bytes
    u32 first_local;   // so many rows of the pool are read directly, and of each 64 that follow
    u32 local_of_64;   // so many more
    u32 staged_blocks; // of `mixed`, the first: they copy what the CPU collects
    // A round whose ids the host put into the mailbox itself: row i of the output is row ids[i]. No kernel comes before
    // `mixed` then, and the host gives the lane to one call at a time.
    u32 host_rows, host_sequence; // 0: it is none
    u64 *consumed;                // gets the sequence number when the round is over
    u32 copiers;    // warps of a staged block that copy, beside the one that looks for chunks; the others read directly
    u32 by_parcels; // whether they copy CHUNK_UNIT rows at a time, through shared memory
    u32 far_blocks; // of `mixed`, the first, staged ones among them: they copy the pool's rows, those behind near ones
    u32 spare;
};

static constexpr u64 LATE = ~0ull;
static constexpr u32 CHUNK_UNIT = 16, FLAG_STRIDE = 8; // as in c/lane.h
static constexpr u32 MIX_BLOCK = 1024, MIX_WARPS = MIX_BLOCK / WARP; // as in c/cuda.c
static constexpr u32 POST_AT_ONCE = 4;                               // ids of a thread, as in c/cuda.c
static constexpr u32 CHUNKS_AT_ONCE = 64; // of a staged block
static constexpr u32 POLLED_AT_ONCE = 16; // chunks that its first warp looks for, each look being a way over PCIe
// Rows of a parcel, or near ones, that a warp turns into their form together; as in c/cuda.c.
static constexpr u32 AT_ONCE = 4;
// What is known of a chunk; THERE + n: it is at place n of the staging buffer.
static constexpr u32 WAITING = 0, NOT_THERE = 1, THERE = 2;

// Whether nobody of the CPU works at the last round any more.
static __device__ __forceinline__ bool is_finished(const Mix &m)
{
    return load_acquire(m.finished) == *(volatile u32 *)&m.state->sequence;
}

static __device__ bool try_take(const Mix &m)
{
    const u64 was = atomicCAS(&m.state->owner, 0, m.token);
    if (was != LATE)
        return was == 0;
    if (!is_finished(m) || atomicCAS(&m.state->owner, LATE, m.token) != LATE)
        return false;
    // Between the two another call may have had the lane and left it late, too: now nobody else can.
    __threadfence();
    if (is_finished(m))
        return true;
    atomicExch(&m.state->owner, LATE);
    return false;
}

// Have the lane for this call; by one thread.
static __device__ bool take(const Mix &m)
{
    const u64 begin = clock_ns();
    bool taken = try_take(m);
    while (!taken && clock_ns() - begin < m.patience_ns) {
        __nanosleep(500);
        taken = try_take(m);
    }
    if (!taken)
        atomicAdd(&m.state->busy_calls, 1);
    __threadfence(); // what the call before left there is seen from here on
    return taken;
}

extern "C" __global__ void take_lane(const __grid_constant__ Gather, const __grid_constant__ Mix m)
{
    let_next_begin();
    take(m);
}

// How many of the first `misses` rows of the pool are staged.
static __device__ __forceinline__ u32 staged_of(const Mix &m, u32 misses)
{
    if (misses <= m.first_local)
        return 0;
    const u32 rest = misses - m.first_local, turn = rest % 64;
    const u32 staged = rest / 64 * (64 - m.local_of_64) + (turn > m.local_of_64 ? turn - m.local_of_64 : 0);
    return staged < m.capacity ? staged : m.capacity;
}

// The place of the hot copy of the row of each lane (-1: none), or NOT_HOT; asked by a whole warp. Eight lanes read a
// bucket together: a load that goes to as many lines as a warp has lanes takes as many turns, and a lane that reads a
// bucket alone does so eight times.
static __device__ __forceinline__ u32 find_hot_each(const Hot &hot, int row, u32 lane)
{
    static constexpr u32 READERS = BUCKET / 2, AT_A_TIME = WARP / READERS; // lanes of a bucket, buckets of a load
    const ulonglong2 *const pairs = (const ulonglong2 *)hot.entries;       // [buckets][READERS]
    u32 found = NOT_HOT, bucket = bucket_of((u32)row, hot.buckets);
    for (u32 asking; (asking = __ballot_sync(~0u, row >= 0)) != 0;) {
        ulonglong2 pair[READERS];
#pragma unroll
        for (u32 s = 0; s < READERS; s++) {
            const u32 whose = s * AT_A_TIME + lane / READERS;
            const u32 at = __shfl_sync(~0u, bucket, whose);
            pair[s] = {EMPTY, EMPTY};
            if (asking >> whose & 1)
                pair[s] = __ldg(pairs + (u64)at * READERS + lane % READERS);
        }
#pragma unroll
        for (u32 s = 0; s < READERS; s++) {
            const u64 x = pair[s].x, y = pair[s].y;
            const u32 id = __shfl_sync(~0u, (u32)row, s * AT_A_TIME + lane / READERS);
            const bool in_x = (u32)(x >> 32) == id && x != EMPTY, in_y = (u32)(y >> 32) == id && y != EMPTY;
            // What the readers of the bucket of this lane's row saw, for the lanes whose turn this is.
            const u32 first = lane % AT_A_TIME * READERS, readers = (1u << READERS) - 1;
            const u32 matches = __ballot_sync(~0u, in_x || in_y) >> first & readers;
            const u32 empty = __ballot_sync(~0u, x == EMPTY || y == EMPTY) >> first & readers;
            const u32 place = __shfl_sync(~0u, (u32)(in_x ? x : y), first + (matches ? __ffs(matches) - 1 : 0));
            if (lane / AT_A_TIME != s || row < 0)
                continue;
            if (matches)
                found = place;
            if (matches || empty)
                row = -1; // an entry goes to the next bucket only from a full one
        }
        bucket = bucket + 1 == hot.buckets ? 0 : bucket + 1;
    }
    return found;
}

// What is known of POST_AT_ONCE rows of the call, the first of them row `first` and the others `step` apart. Tables
// with lanes have no rows beyond 2^31.
struct Known {
    int rows[POST_AT_ONCE]; // as row_of() gives them
    u32 hot[POST_AT_ONCE];  // places of copies, or NOT_HOT
};

// Asked by a whole warp.
static __device__ __forceinline__ void look_up(const Gather &p, u32 first, u32 step, u32 lane, Known &known)
{
    const u32 total = p.outer * p.out_columns;
#pragma unroll
    for (u32 k = 0; k < POST_AT_ONCE; k++) {
        const u32 i = first + k * step, t = i / p.out_columns;
        known.rows[k] = i < total ? (int)row_of(p, t, i - t * p.out_columns) : -1;
    }
#pragma unroll
    for (u32 k = 0; k < POST_AT_ONCE; k++)
        known.hot[k] = p.hot.buckets ? find_hot_each(p.hot, known.rows[k], lane) : NOT_HOT;
}

// Give each row of the call its way.
template <bool MANY> static __device__ __forceinline__ void post(const Gather &p, const Mix &m)
{
    __shared__ u32 own_misses, own_near;
    __shared__ bool mine;
    const u32 lane = threadIdx.x % WARP;
    const u32 total = p.outer * p.out_columns, step = gridDim.x * blockDim.x;
    u32 first = blockIdx.x * blockDim.x + threadIdx.x;
    let_next_begin();
    if (threadIdx.x == 0) {
        if (MANY)
            wait_for_last();
        if (blockIdx.x == 0)
            *(volatile u64 *)m.begun = m.token;
        own_misses = own_near = 0;
        mine = MANY ? *(volatile u64 *)&m.state->owner == m.token : take(m);
    }
    __syncwarp();
    // The other warps look up their first rows meanwhile. What wrote the ids was over before the lane was asked for.
    Known known;
    look_up(p, first, step, lane, known);
    __syncthreads();
    if (!mine)
        return;
    u32 *const misses = MANY ? &m.state->misses : &own_misses, *const near = MANY ? &m.state->near : &own_near;
    u32 hits = 0;
    while (first - lane < total) {
        u32 missed[POST_AT_ONCE], others[POST_AT_ONCE]; // lanes
        u32 missed_count = 0, other_count = 0;
#pragma unroll
        for (u32 k = 0; k < POST_AT_ONCE; k++) {
            const bool hot = known.hot[k] != NOT_HOT, miss = known.rows[k] >= 0 && !hot;
            hits += hot;
            missed[k] = __ballot_sync(~0u, miss);
            others[k] = __ballot_sync(~0u, first + k * step < total && !miss);
            missed_count += __popc(missed[k]);
            other_count += __popc(others[k]);
        }
        // Both are on their way at once.
        u32 taken = 0;
        if (lane < 2)
            taken = atomicAdd(lane == 0 ? misses : near, lane == 0 ? missed_count : other_count);
        // Of this warp's next miss among all, and of its next near row.
        u32 number = __shfl_sync(~0u, taken, 0), near_number = __shfl_sync(~0u, taken, 1);
#pragma unroll
        for (u32 k = 0; k < POST_AT_ONCE; k++) {
            const u32 i = first + k * step, below = (1u << lane) - 1;
            if (missed[k] >> lane & 1) {
                const int row = known.rows[k];
                const u8 *const from = p.base ? p.base + (u64)row * p.stride : nullptr;
                // Of the misses before this one, `slot` are staged; it is, too, if there are more with it.
                const u32 n = number + __popc(missed[k] & below), slot = staged_of(m, n);
                if (staged_of(m, n + 1) == slot) {
                    m.local[n - slot] = {from, i, 0};
                } else {
                    m.staged[slot] = {from, i, 0};
                    m.ids[slot] = row;
                }
            } else if (others[k] >> lane & 1) {
                const u32 at = known.hot[k];
                const u8 *const from = at == NOT_HOT ? nullptr : p.hot.rows + (u64)at * p.hot.row_stride;
                m.local[total - 1 - (near_number + __popc(others[k] & below))] = {from, i, 0};
            }
            number += __popc(missed[k]);
            near_number += __popc(others[k]);
        }
        first += POST_AT_ONCE * step;
        if (first - lane < total)
            look_up(p, first, step, lane, known);
    }
    __syncthreads();
    if (p.hot.buckets) {
        hits = __reduce_add_sync(~0u, hits);
        if (lane == 0 && hits)
            atomicAdd(p.hot.counters + (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) % COUNTERS, (u64)hits);
    }
    if (threadIdx.x)
        return;
    // For all threads of the block, which the barrier put before this one.
    __threadfence_system();
    if (MANY) {
        if (atomicAdd(&m.state->posted, 1) != gridDim.x - 1)
            return;
        __threadfence_system();
    }
    const u32 staged = staged_of(m, MANY ? *(volatile u32 *)misses : own_misses);
    if (!MANY) {
        m.state->misses = own_misses;
        m.state->near = own_near;
    }
    m.state->staged = staged;
    m.state->posted = 0;
    if (staged) {
        const u32 last = m.state->sequence, sequence = last == ~0u ? 1 : last + 1; // as ED_LANE_AFTER of c/lane.h
        m.state->sequence = sequence;
        store_release(m.message, (u64)sequence << 32 | (u64)(m.chunk_rows / CHUNK_UNIT) << 24 | staged);
    }
}

extern "C" __global__ void __launch_bounds__(MIX_BLOCK)
    post_few(const __grid_constant__ Gather p, const __grid_constant__ Mix m)
{
    post<false>(p, m);
}

extern "C" __global__ void __launch_bounds__(MIX_BLOCK)
    post_many(const __grid_constant__ Gather p, const __grid_constant__ Mix m)
{
    post<true>(p, m);
}

// Look once whether a chunk came: WAITING, THERE + its place, or NOT_THERE if it is late.
static __device__ __forceinline__ u32 look_for_chunk(const Mix &m, u32 chunk, u32 sequence, u64 begin)
{
    const u64 flag = load_acquire(m.flags + (u64)chunk * FLAG_STRIDE);
    if ((u32)flag == sequence)
        return THERE + (u32)(flag >> 32);
    if (clock_ns() - begin <= m.deadline_ns)
        return WAITING;
    atomicAdd(&m.state->late_chunks, 1);
    m.state->late = 1;
    return NOT_THERE;
}

// What `post` found for a slot. `row`: whether there is one.
static __device__ __forceinline__ Entry entry_of(const Gather &p, const Mix &m, u32 slot, bool *row)
{
    *row = true;
    if (!m.host_rows)
        return m.staged[slot];
    const int id = m.ids[slot];
    *row = id >= 0;
    return {*row && p.base ? p.base + (u64)id * p.stride : nullptr, slot, 0};
}

// Copy the row of a slot, which lies at `from` if its chunk came in time; else directly, where that can be.
template <typename Form>
static __device__ __forceinline__ void copy_staged(const Gather &p, const Mix &m, u32 slot, const u8 *from, u32 lane)
{
    bool row;
    const Entry e = entry_of(p, m, slot, &row);
    u8 *out = place_of(p, e.to);
    emit<Form, Fresh>(p, from ? from : e.from, out, lane);
    if (!from && row && !e.from && lane == 0)
        *(volatile u32 *)m.failed = 1;
}

// A parcel: copy the rows of the `rows` slots from `slot` on, which lie one after the other at `from` if their chunk
// came in time: at a multiple of 16 bytes, and at a line where rows have a multiple of 8. So they cross PCIe in whole
// lines: a row by itself asks for a part of one at either end, and for its scales once more.
template <typename Form>
static __device__ __forceinline__ void copy_parcel(const Gather &p, const Mix &m, u32 slot, u32 rows, const u8 *from,
                                                   uint4 *room, u32 lane)
{
    const u32 units = (u32)(rows * p.row_bytes + sizeof(uint4) - 1) / sizeof(uint4);
    for (u32 c = lane; from && c < units; c += WARP)
        bring(room + c, (const uint4 *)from + c);
    Entry e = {nullptr, 0, 0};
    bool row = false;
    if (lane < rows)
        e = entry_of(p, m, slot + lane, &row);
    const u64 place = (u64)place_of(p, e.to);
    wait_for_brought();
    __syncwarp(); // what the other lanes brought is there, too
    for (u32 first = 0; first < rows; first += AT_ONCE) {
        const u8 *sources[AT_ONCE];
        u8 *outs[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            sources[k] = from ? (const u8 *)room + (first + k) * p.row_bytes
                              : (const u8 *)__shfl_sync(~0u, (u64)e.from, first + k);
            outs[k] = (u8 *)__shfl_sync(~0u, place, first + k);
        }
        emit_all<Form, Fresh>(p, sources, outs, rows - first, lane);
    }
    if (!from && row && !e.from)
        *(volatile u32 *)m.failed = 1;
    __syncwarp(); // before the room is used again
}

// Copy the chunks of this block, of which number q is chunk `first + q * staged_blocks`. The first warp looks whether
// they are there, POLLED_AT_ONCE at a time; the copiers copy.
//
// Loads of the staging buffer are plain ones, by parcels past the first-level cache. More is not needed: the flag was
// acquired for the system, the word in shared memory for the block. Loads that ask for fresh bytes each (ld.cv) take
// much longer (docs/performance.md).
template <typename Form>
static __device__ __forceinline__ void copy_chunks(const Gather &p, const Mix &m, u32 staged, u32 chunks, u32 sequence,
                                                   u32 warp, u32 lane)
{
    __shared__ u32 ready[CHUNKS_AT_ONCE];
    uint4 *const parcels = launched_shared(); // [copiers][row_bytes]
    static_assert(CHUNK_UNIT == sizeof(uint4), "a parcel has as many uint4 as a row has bytes");
    const u32 meeting = (1 + m.copiers) * WARP;
    const u64 begin = clock_ns();
    const u32 unit = m.by_parcels ? CHUNK_UNIT : 1, units = m.chunk_rows / unit; // rows of one, and units of a chunk
    for (u32 first = blockIdx.x; first < chunks; first += m.staged_blocks * CHUNKS_AT_ONCE) {
        meet(meeting);
        if (threadIdx.x < CHUNKS_AT_ONCE)
            ready[threadIdx.x] = WAITING;
        meet(meeting);
        const u32 left = (chunks - first + m.staged_blocks - 1) / m.staged_blocks;
        const u32 count = left < CHUNKS_AT_ONCE ? left : CHUNKS_AT_ONCE;
        if (warp == 0) {
            // One look a turn: a lane that waited in a loop of its own would hold up those whose chunks are there.
            for (u32 q = lane; lane < POLLED_AT_ONCE && q < count;) {
                const u32 found = look_for_chunk(m, first + q * m.staged_blocks, sequence, begin);
                if (found == WAITING) {
                    __nanosleep(100);
                } else {
                    store_release_block(ready + q, found);
                    q += POLLED_AT_ONCE;
                }
            }
            continue;
        }
        for (u32 x = warp - 1; x < count * units; x += m.copiers) {
            const u32 q = x / units, r = (x - q * units) * unit, chunk = first + q * m.staged_blocks;
            const u32 slot = chunk * m.chunk_rows + r;
            if (slot >= staged)
                break;
            u32 found;
            while ((found = load_acquire_block(ready + q)) == WAITING)
                __nanosleep(20);
            const u64 place = found - THERE;
            const u8 *from = m.staging + place * m.chunk_stride + (u64)r * p.row_bytes;
            from = found >= THERE ? from : nullptr;
            if (!m.by_parcels) {
                copy_staged<Form>(p, m, slot, from, lane);
                continue;
            }
            const u32 rows = staged - slot < CHUNK_UNIT ? staged - slot : CHUNK_UNIT;
            copy_parcel<Form>(p, m, slot, rows, from, parcels + (warp - 1) * p.row_bytes, lane);
        }
    }
}

// Copy this warp's share of the `near` rows that are near, as number `number` of `warps`: several at once, since the
// GPU's own memory answers soon.
template <typename Form>
static __device__ __forceinline__ void copy_near(const Gather &p, const Mix &m, u32 near, u32 number, u32 warps,
                                                 u32 lane)
{
    const Entry *const last = m.local + (p.outer * p.out_columns - 1);
    for (u32 first = number * AT_ONCE; first < near; first += warps * AT_ONCE) {
        Entry e = {nullptr, 0, 0};
        if (lane < AT_ONCE && first + lane < near)
            e = *(last - (first + lane));
        const u64 place = (u64)place_of(p, e.to);
        const u8 *sources[AT_ONCE];
        u8 *outs[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            sources[k] = (const u8 *)__shfl_sync(~0u, (u64)e.from, k);
            outs[k] = (u8 *)__shfl_sync(~0u, place, k);
        }
        emit_all<Form, Still>(p, sources, outs, near - first, lane);
    }
}

// Copy this block's share of a call's rows: in the first blocks one warp and the copiers those that come by way of the
// CPU, the other warps those that are read directly; further blocks, or where there are none these warps, too, those
// that are near. A call that did not get the lane reads all of them directly.
template <typename Form> static __device__ __forceinline__ void mixed(const Gather &p, const Mix &m)
{
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    wait_for_last();
    const volatile State &state = *m.state;
    const u64 owner = state.owner; // all on their way at once
    const u32 posted = state.staged, posted_sequence = state.sequence, misses = state.misses, posted_near = state.near;
    const u32 staged = m.host_rows ? m.host_rows : posted, sequence = m.host_rows ? m.host_sequence : posted_sequence;
    const u32 local = m.host_rows ? 0 : misses - posted, near = m.host_rows ? 0 : posted_near;
    if (!m.host_rows && owner != m.token) {
        if (p.base) {
            gather<Form>(p);
        } else {
            if (threadIdx.x == 0)
                *(volatile u32 *)m.failed = 1;
            for (u32 i = blockIdx.x * MIX_WARPS + warp; i < p.outer * p.out_columns; i += gridDim.x * MIX_WARPS)
                emit<Form, Still>(p, nullptr, place_of(p, i), lane);
        }
        return;
    }
    const u32 chunks = (staged + m.chunk_rows - 1) / m.chunk_rows, waiting = staged ? m.staged_blocks : 0;
    if (blockIdx.x < waiting && warp <= m.copiers) {
        copy_chunks<Form>(p, m, staged, chunks, sequence, warp, lane);
    } else if (blockIdx.x < m.far_blocks) {
        const u32 others = MIX_WARPS - 1 - m.copiers; // warps of a waiting block
        const u32 warps = waiting * others + (m.far_blocks - waiting) * MIX_WARPS;
        const u32 number = blockIdx.x < waiting ? blockIdx.x * others + warp - 1 - m.copiers
                                                : waiting * others + (blockIdx.x - waiting) * MIX_WARPS + warp;
        // One row at a time, of few warps: with four of each on their way, staged rows waited behind the translations
        // of these, and a gather took up to 1.4 times as long.
        for (u32 i = number; i < local; i += warps) {
            const Entry e = m.local[i];
            emit<Form, Still>(p, e.from, place_of(p, e.to), lane);
        }
        if (gridDim.x == m.far_blocks)
            copy_near<Form>(p, m, near, number, warps, lane);
    } else {
        const u32 number = (blockIdx.x - m.far_blocks) * MIX_WARPS + warp;
        copy_near<Form>(p, m, near, number, (gridDim.x - m.far_blocks) * MIX_WARPS, lane);
    }
    __syncthreads();
    if (threadIdx.x)
        return;
    __threadfence();
    if (atomicAdd(&m.state->left, 1) != gridDim.x - 1)
        return;
    __threadfence();
    const u64 free = *(volatile u32 *)&m.state->late ? LATE : 0;
    m.state->late = m.state->left = m.state->misses = m.state->near = m.state->staged = 0;
    if (m.host_rows) {
        __threadfence_system();
        store_release(m.consumed, m.host_sequence);
        return;
    }
    __threadfence();
    atomicExch(&m.state->owner, free);
}

#define MIXED(name, form)                                                                                          \
    extern "C" __global__ void __launch_bounds__(MIX_BLOCK)                                                        \
        mixed_##name(const __grid_constant__ Gather p, const __grid_constant__ Mix m)                              \
    {                                                                                                              \
        mixed<form>(p, m);                                                                                         \
    }

FOR_EACH_FORM(MIXED)

// Put `count` ids into the empty entries: id ids[i] gets place i. There is room for all (buckets * 16 > count).
struct Insert {
    const u32 *ids;
    u64 *entries;
    u32 count, buckets;
};

extern "C" __global__ void insert_hot(const __grid_constant__ Insert p)
{
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count)
        return;
    const u64 entry = (u64)p.ids[i] << 32 | i;
    for (u32 bucket = bucket_of(p.ids[i], p.buckets);; bucket = bucket + 1 == p.buckets ? 0 : bucket + 1)
        for (u32 k = 0; k < BUCKET; k++)
            if (atomicCAS(p.entries + (u64)bucket * BUCKET + k, EMPTY, entry) == EMPTY)
                return;
}

// The Engram hash; engramdax/ngram/layout.py states the rule, c/hash.h the batch form.
struct Hash {
    const void *tokens;
    const i64 *starts;   // [sequences + 1], or NULL: one sequence
    const u8 *blocked;   // [count], or NULL
    const i64 *history;  // [sequences][max_ngram - 1], or NULL
    const int *token_map; // or NULL: compressed ids
    const u32 *orders;    // [order_count]
    const i64 *multipliers; // [layers][max_ngram]
    const i64 *primes;      // [layers][heads]
    const u64 *reciprocals; // [layers][heads]: floor(2^64 / prime)
    const i64 *offsets;     // [layers][heads]
    void *out;              // [count][layers][heads]
    i64 vocab, pad;
    u32 count, sequences, tokens_64, out_64;
    u32 layers, heads, heads_per_order, max_ngram;
};

static __device__ __forceinline__ i64 compressed(const Hash &h, i64 token)
{
    if (token < 0 || token >= h.vocab)
        return -1;
    return h.token_map ? __ldg(h.token_map + token) : token;
}

static __device__ __forceinline__ i64 token_at(const Hash &h, i64 i)
{
    return h.tokens_64 ? ((const i64 *)h.tokens)[i] : (i64)((const int *)h.tokens)[i];
}

// What stands `back` places before position i: a compressed id, or -1 where nothing can be seen.
static __device__ __forceinline__ i64 seen(const Hash &h, u32 s, i64 start, i64 i, u32 back)
{
    if (i - (i64)back >= start)
        return h.blocked && h.blocked[i - back] ? -1 : compressed(h, token_at(h, i - back));
    if (!h.history)
        return -1;
    const i64 older = (i64)back - (i - start) - 1;
    return compressed(h, h.history[(i64)s * (h.max_ngram - 1) + older]);
}

extern "C" __global__ void __launch_bounds__(256) hash_tokens(const __grid_constant__ Hash h)
{
    const u64 per_token = (u64)h.layers * h.heads, total = per_token * h.count;
    for (u64 k = blockIdx.x * (u64)blockDim.x + threadIdx.x; k < total; k += (u64)gridDim.x * blockDim.x) {
        const i64 i = (i64)(k / per_token);
        const u32 rest = (u32)(k % per_token), layer = rest / h.heads, head = rest % h.heads;
        u32 s = 0;
        i64 start = 0, id = -1;
        bool padding = false;
        if (h.starts) {
            u32 high = h.sequences;
            while (s < high) {
                const u32 middle = (s + high) / 2;
                if (h.starts[middle + 1] <= i)
                    s = middle + 1;
                else
                    high = middle;
            }
            padding = s == h.sequences;
            start = padding ? 0 : h.starts[s];
        }
        // A token outside the vocabulary counts as padding: a kernel has nobody to complain to.
        if (!padding && compressed(h, token_at(h, i)) >= 0) {
            const u32 order = h.orders[head / h.heads_per_order];
            u64 mix = 0;
            bool wall = false;
            for (u32 back = 0; back < order; back++) {
                const i64 token = wall ? -1 : seen(h, s, start, i, back);
                wall |= token < 0;
                mix ^= (u64)((wall ? h.pad : token) * h.multipliers[layer * h.max_ngram + back]);
            }
            const u64 at = (u64)layer * h.heads + head, prime = (u64)h.primes[at];
            // mix < 2^63, so the quotient that the reciprocal gives is short by one at the most.
            u64 remainder = mix - __umul64hi(mix, h.reciprocals[at]) * prime;
            remainder -= remainder >= prime ? prime : 0;
            id = (i64)remainder + h.offsets[at];
        }
        if (h.out_64)
            ((i64 *)h.out)[k] = id;
        else
            ((int *)h.out)[k] = (int)id;
    }
}
