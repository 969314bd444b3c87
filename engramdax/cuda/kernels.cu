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

template <typename Unit> struct Raw {
    // Every lane asks for its first two units before it stores any: rows of up to 1 KiB are one round trip.
    static __device__ __forceinline__ void emit(const Gather &p, const u8 *row, u8 *out, u32 lane)
    {
        const u32 units = (u32)(p.row_bytes / sizeof(Unit));
        Unit *to = (Unit *)out;
        const Unit *from = (const Unit *)row;
        for (u32 c = lane; c < units; c += 2 * WARP) {
            const bool more = c + WARP < units;
            Unit a = {}, b = {};
            if (row) {
                a = __ldg(from + c);
                if (more)
                    b = __ldg(from + c + WARP);
            }
            to[c] = a;
            if (more)
                to[c + WARP] = b;
        }
    }
};

// float8_e4m3fn: the seven low bits moved into a float's exponent and mantissa are off by a power of two, also for
// subnormals; nothing is flushed to zero here.
static __device__ __forceinline__ float from_e4m3(u32 byte)
{
    const u32 low = byte & 0x7f;
    const float size = low == 0x7f ? __int_as_float(0x7fffffff) : __uint_as_float(low << 20) * 0x1p120f;
    return __uint_as_float(__float_as_uint(size) | (byte & 0x80) << 24);
}

// float8_e8m0fnu as serving engines read it: 2^(byte - 127), which for byte 0 is a subnormal, and 255 an infinity.
static __device__ __forceinline__ float from_e8m0(u32 byte)
{
    return __uint_as_float(byte ? byte << 23 : 0x00400000u);
}

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

template <typename Half> struct Float8 {
    // dim values, then a scale for each 32 of them; dim is a multiple of 32, rows lie at multiples of 8 bytes.
    static __device__ __forceinline__ void emit(const Gather &p, const u8 *row, u8 *out, u32 lane)
    {
        for (u32 c = lane; c < p.dim / 8; c += WARP) {
            u64 values = 0;
            u32 exponent = 0;
            if (row) {
                values = __ldg((const u64 *)row + c);
                exponent = __ldg(row + p.dim + c / 4);
            }
            const float scale = from_e8m0(exponent);
            uint4 halves = {0, 0, 0, 0};
            if (row) {
                u32 *h = &halves.x;
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float low = from_e4m3((u32)(values >> (16 * i)) & 0xff) * scale;
                    const float high = from_e4m3((u32)(values >> (16 * i + 8)) & 0xff) * scale;
                    h[i] = Half::pack(low, high);
                }
            }
            ((uint4 *)out)[c] = halves;
        }
    }
};

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
        Form::emit(p, from, p.out + (i64)t * p.out_stride + (i64)column * p.out_column_stride, lane);
    }
    if (p.hot.buckets && lane == 0 && hits)
        atomicAdd(p.hot.counters + (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) % COUNTERS, (u64)hits);
}

#define GATHER(name, form)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ Gather p)                       \
    {                                                                                                              \
        gather<form>(p);                                                                                           \
    }

GATHER(gather_raw_1, Raw<u8>)
GATHER(gather_raw_2, Raw<unsigned short>)
GATHER(gather_raw_4, Raw<u32>)
GATHER(gather_raw_8, Raw<u64>)
GATHER(gather_raw_16, Raw<uint4>)
GATHER(gather_float8_bf16, Float8<Bf16>)
GATHER(gather_float8_fp16, Float8<Fp16>)

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
