// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernel.h"
#include "lane.h"

enum {
    // Of the driver's interface, which is stable.
    REGISTER_PORTABLE = 1,
    REGISTER_DEVICEMAP = 2,
    REGISTER_READ_ONLY = 8,
    PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    BLOCK = 256,
    WARPS = BLOCK / 32,
    HASH_BLOCKS = 4096,
    // As in kernels.cu.
    MIX_BLOCK = 1024,
    MIX_WARPS = MIX_BLOCK / 32,
    POST_AT_ONCE = 4, // ids of a thread
    AT_ONCE = 4,      // near rows of a warp
    // Up to so many rows are posted by one block, of MIX_BLOCK threads: several need a kernel before them that asks for
    // the lane. With hot rows there are always several, and one row for each of their threads, up to MOST_POST_BLOCKS:
    // each lookup is a read of far memory, of which a multiprocessor has few on their way at once.
    FEW_ROWS = 2 * MIX_BLOCK,
    POST_BLOCK = 256, // threads of one of several
    MOST_POST_BLOCKS = 128,
    // A chunk is at most this much, so that one that is late or held up holds up little. It is not less, unless each
    // thread would get fewer than so many: every chunk costs a thread some time (docs/performance.md).
    CHUNK_BYTES = 28 << 10,
    CHUNKS_PER_THREAD = 4,
    // Of a block's warps the first looks for chunks, at most so many copy them, and the others copy rows directly.
    MOST_COPIERS = 16,
    // Where fewer have room for a parcel, rows are so large that most of their lines are whole anyway.
    LEAST_COPIERS = 6,
    // Blocks for hot rows alone wait for nobody, and soon leave.
    MOST_HOT_BLOCKS = 64,
};

static struct {
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*primary_retain)(void **, int);
    int (*context_get)(void **);
    int (*context_set)(void *);
    int (*host_register)(void *, size_t, unsigned);
    int (*host_unregister)(void *);
    int (*host_pointer)(uint64_t *, void *, unsigned);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    int (*launch_ex)(const void *, void *, void **, void **);
    int (*is_capturing)(void *, int *);
    int (*error_name)(int, const char **);
    int (*error_text)(int, const char **);
} driver;

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    {"cuInit", offsetof(__typeof__(driver), init)},
    {"cuDeviceGet", offsetof(__typeof__(driver), device_get)},
    {"cuDevicePrimaryCtxRetain", offsetof(__typeof__(driver), primary_retain)},
    {"cuCtxGetCurrent", offsetof(__typeof__(driver), context_get)},
    {"cuCtxSetCurrent", offsetof(__typeof__(driver), context_set)},
    {"cuMemHostRegister_v2", offsetof(__typeof__(driver), host_register)},
    {"cuMemHostUnregister", offsetof(__typeof__(driver), host_unregister)},
    {"cuMemHostGetDevicePointer_v2", offsetof(__typeof__(driver), host_pointer)},
    {"cuLaunchKernel", offsetof(__typeof__(driver), launch)},
    {"cuLaunchKernelEx", offsetof(__typeof__(driver), launch_ex)},
    {"cuStreamIsCapturing", offsetof(__typeof__(driver), is_capturing)},
    {"cuGetErrorName", offsetof(__typeof__(driver), error_name)},
    {"cuGetErrorString", offsetof(__typeof__(driver), error_text)},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *absent = "not opened";

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        absent = "libcuda.so.1 is not installed (it comes with NVIDIA's driver)";
        return;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol) {
            absent = "libcuda.so.1 lacks a function that CUDA 11.8 has: the driver is too old";
            return;
        }
        *(void **)((char *)&driver + symbols[i].offset) = symbol;
    }
    const int result = driver.init(0);
    absent = result == 0 ? NULL : ed_cuda_error_text(result);
}

const char *ed_cuda_open(void)
{
    pthread_once(&once, open_driver);
    return absent;
}

const char *ed_cuda_error_name(int result)
{
    const char *name = NULL;
    if (driver.error_name)
        driver.error_name(result, &name);
    return name ? name : "unknown error";
}

const char *ed_cuda_error_text(int result)
{
    const char *text = NULL;
    if (driver.error_text)
        driver.error_text(result, &text);
    return text ? text : "no text";
}

int ed_cuda_use(int ordinal)
{
    if (ed_cuda_open())
        return ED_CUDA_ABSENT;
    int device, result = driver.device_get(&device, ordinal);
    if (result)
        return result;
    // Retained for the life of the process: memory stays registered in it.
    void *context;
    if ((result = driver.primary_retain(&context, device)))
        return result;
    void *current = NULL;
    if ((result = driver.context_get(&current)))
        return result;
    return current == context ? 0 : driver.context_set(context);
}

int ed_cuda_register(uint8_t *address, uint64_t length, uint64_t chunk, int read_only, uint64_t *done)
{
    const unsigned flags = REGISTER_PORTABLE | REGISTER_DEVICEMAP | (read_only ? REGISTER_READ_ONLY : 0);
    for (*done = 0; *done < length;) {
        const uint64_t left = length - *done, size = left < chunk ? left : chunk;
        const int result = driver.host_register(address + *done, size, flags);
        if (result) {
            ed_cuda_unregister(address, *done, chunk);
            return result;
        }
        __atomic_store_n(done, *done + size, __ATOMIC_RELAXED);
    }
    return 0;
}

int ed_cuda_unregister(uint8_t *address, uint64_t length, uint64_t chunk)
{
    int first = 0;
    for (uint64_t at = 0; at < length; at += chunk) {
        const int result = driver.host_unregister(address + at);
        first = first ? first : result;
    }
    return first;
}

int ed_cuda_device_pointer(uint8_t *address, uint64_t *ret)
{
    return driver.host_pointer(ret, address, 0);
}

static int launch(uint64_t function, uint32_t grid, uint32_t block, uint32_t shared_bytes, void **parameters,
                  uint64_t stream)
{
    return driver.launch((void *)(uintptr_t)function, grid, 1, 1, block, 1, 1, shared_bytes, (void *)(uintptr_t)stream,
                         parameters, NULL);
}

int ed_cuda_launch(uint64_t function, uint32_t grid, uint32_t block, const void *parameters, uint64_t stream)
{
    void *list[] = {(void *)parameters};
    return launch(function, grid, block, 0, list, stream);
}

// CUlaunchConfig and CUlaunchAttribute of the driver's interface.
struct launch_attribute {
    int id;
    char spare[4];
    union {
        char size[64];
        int allowed;
    } value;
};

struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    struct launch_attribute *attributes;
    unsigned attribute_count;
};

// A launch that may begin while the kernel before it in the stream still runs, whose end it waits for by itself.
static int launch_early(uint64_t function, uint32_t grid, uint32_t block, uint32_t shared_bytes, void **parameters,
                        uint64_t stream)
{
    struct launch_attribute early = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.allowed = 1};
    const struct launch_config config = {
        {grid, 1, 1}, {block, 1, 1}, shared_bytes, (void *)(uintptr_t)stream, &early, 1,
    };
    return driver.launch_ex(&config, (void *)(uintptr_t)function, parameters, NULL);
}

// A plan with the rows' places; gives the number of rows.
static uint64_t place_rows(struct ed_cuda_gather *p, const struct ed_cuda_gather *plan, uint32_t outer, uint64_t out,
                           int64_t out_stride, int64_t out_column_stride)
{
    *p = *plan;
    p->outer = outer;
    p->out = out;
    p->out_stride = out_stride;
    p->out_column_stride = out_column_stride;
    return (uint64_t)outer * p->out_columns;
}

// Rows of a chunk for a call of `rows` rows.
static uint32_t chunk_rows(const struct ed_cuda_lane *lane, uint64_t rows, uint64_t row_bytes)
{
    const uint64_t most = CHUNK_BYTES / row_bytes / ED_LANE_CHUNK_UNIT, few = rows / lane->threads / CHUNKS_PER_THREAD;
    const uint64_t wanted = (few + ED_LANE_CHUNK_UNIT - 1) / ED_LANE_CHUNK_UNIT;
    const uint64_t units = wanted < most ? wanted : most;
    return (uint32_t)(units == 0 ? 1 : units < ED_LANE_MOST_UNITS ? units : ED_LANE_MOST_UNITS) * ED_LANE_CHUNK_UNIT;
}

// Bytes of a parcel: of the rows that a warp copies at once, through shared memory.
static uint64_t parcel_bytes(uint64_t row_bytes)
{
    return ED_LANE_CHUNK_UNIT * row_bytes;
}

// What the kernel that copies is launched with, beside its parameters.
struct grid {
    uint32_t blocks, shared_bytes;
};

// Plan how the blocks of a mix copy: how many there are, how many of them copy chunks, by how many warps, and how many
// are for hot rows alone.
static struct grid plan_blocks(struct ed_cuda_mix *m, const struct ed_cuda_lane *lane, uint64_t rows,
                               uint64_t row_bytes, bool hot)
{
    const uint32_t chunks = (uint32_t)((rows + m->chunk_rows - 1) / m->chunk_rows);
    const uint64_t wanted = (rows + MIX_WARPS - 1) / MIX_WARPS; // a warp for each row
    const uint32_t blocks = lane->blocks < wanted ? lane->blocks : (uint32_t)wanted;
    const uint64_t parcels = lane->shared_bytes / parcel_bytes(row_bytes); // that a block has room for
    m->staged_blocks = blocks < chunks ? blocks : chunks;
    m->by_parcels = parcels >= LEAST_COPIERS;
    m->copiers = m->by_parcels && parcels < MOST_COPIERS ? (uint32_t)parcels : MOST_COPIERS;
    m->far_blocks = blocks;
    const uint64_t for_hot = hot ? (rows + AT_ONCE * MIX_WARPS - 1) / (AT_ONCE * MIX_WARPS) : 0;
    return (struct grid){blocks + (uint32_t)(for_hot < MOST_HOT_BLOCKS ? for_hot : MOST_HOT_BLOCKS),
                         m->by_parcels ? (uint32_t)(m->copiers * parcel_bytes(row_bytes)) : 0};
}

// Let the lane know of a launch before it is made. One that is captured will come again, at times that nobody tells.
static void tell_lane(struct ed_cuda_lane *lane, uint64_t token, uint64_t stream)
{
    int capturing = 0;
    if (!__atomic_load_n(&lane->keeps_awake, __ATOMIC_RELAXED) &&
        driver.is_capturing((void *)(uintptr_t)stream, &capturing) == 0 && capturing) {
        __atomic_store_n(&lane->keeps_awake, 1, __ATOMIC_RELAXED);
        ed_lane_keep_awake(lane->lane);
    } else {
        ed_lane_expect(lane->lane, token);
    }
}

// What a launch of a mix of `rows` rows needs; ED_CUDA_TROUBLE if there is something to tell first.
static int prepare_mix(struct ed_cuda_mix *m, const struct ed_cuda_lane *lane, uint64_t rows,
                       const struct ed_cuda_gather *p, struct grid *grid)
{
    *m = lane->mix;
    m->deadline_ns = lane->deadline_us * 1000ull + rows * lane->deadline_row;
    m->chunk_rows = chunk_rows(lane, rows, p->row_bytes);
    m->chunk_stride = (uint32_t)((m->chunk_rows * p->row_bytes + ED_LANE_ALIGN - 1) / ED_LANE_ALIGN * ED_LANE_ALIGN);
    *grid = plan_blocks(m, lane, rows, p->row_bytes, p->hot.buckets != 0);
    const bool trouble = *(const volatile uint32_t *)(uintptr_t)m->failed || ed_lane_troubled(lane->lane);
    return trouble ? ED_CUDA_TROUBLE : 0;
}

static int launch_mix(struct ed_cuda_gather *p, const struct ed_cuda_route *route, uint64_t rows, uint64_t stream)
{
    struct ed_cuda_lane *lane = route->lane;
    struct ed_cuda_mix m;
    struct grid grid;
    int result = prepare_mix(&m, lane, rows, p, &grid);
    if (result)
        return result;
    m.token = __atomic_add_fetch(&lane->token, 1, __ATOMIC_RELAXED);
    tell_lane(lane, m.token, stream);
    __typeof__(launch) *const follow = lane->early ? launch_early : launch;
    void *list[] = {p, &m};
    if (rows <= FEW_ROWS && !p->hot.buckets) {
        result = launch(lane->post_few, 1, MIX_BLOCK, 0, list, stream);
    } else {
        const uint64_t rows_of_a_block = p->hot.buckets ? POST_BLOCK : POST_AT_ONCE * POST_BLOCK;
        const uint64_t blocks = (rows + rows_of_a_block - 1) / rows_of_a_block;
        result = launch(lane->take, 1, 1, 0, list, stream);
        if (!result)
            result = follow(lane->post_many, (uint32_t)(blocks < MOST_POST_BLOCKS ? blocks : MOST_POST_BLOCKS),
                            POST_BLOCK, 0, list, stream);
    }
    return result ? result : follow(route->mixed, grid.blocks, MIX_BLOCK, grid.shared_bytes, list, stream);
}

int ed_cuda_gather_host(const struct ed_cuda_gather *plan, const struct ed_cuda_route *route, const int32_t *ids,
                        uint32_t outer, uint64_t out, int64_t out_stride, int64_t out_column_stride, uint64_t stream)
{
    struct ed_cuda_gather p;
    const uint64_t rows = place_rows(&p, plan, outer, out, out_stride, out_column_stride);
    if (rows == 0)
        return 0;
    struct ed_cuda_lane *lane = route->lane;
    struct ed_cuda_mix m;
    struct grid grid;
    int result = prepare_mix(&m, lane, rows, &p, &grid);
    if (result)
        return result;
    // Both sides have to be done with the round before: the GPU may have given it up.
    const uint32_t last = (uint32_t)lane->token;
    if (__atomic_load_n((uint64_t *)(uintptr_t)m.consumed, __ATOMIC_ACQUIRE) != last ||
        __atomic_load_n((uint32_t *)(uintptr_t)m.finished, __ATOMIC_ACQUIRE) != last)
        return ED_CUDA_BUSY;
    memcpy((void *)(uintptr_t)m.ids, ids, rows * sizeof *ids);
    m.host_rows = (uint32_t)rows;
    m.host_sequence = ED_LANE_AFTER(last);
    lane->token = m.host_sequence;
    ed_lane_expect(lane->lane, 0);
    __atomic_store_n((uint64_t *)(uintptr_t)m.message, ED_LANE_MESSAGE(m.host_sequence, m.chunk_rows, rows),
                     __ATOMIC_RELEASE);
    void *list[] = {&p, &m};
    // No row is read directly: blocks that copy no chunk would have nothing to do.
    result = launch(route->mixed, m.staged_blocks, MIX_BLOCK, grid.shared_bytes, list, stream);
    if (result) // the CPU does a round that the GPU will never use
        __atomic_store_n((uint64_t *)(uintptr_t)m.consumed, m.host_sequence, __ATOMIC_RELEASE);
    return result;
}

int ed_cuda_gather(const struct ed_cuda_gather *plan, const struct ed_cuda_route *route, uint64_t ids, int ids_64,
                   int64_t ids_stride, uint32_t outer, uint64_t out, int64_t out_stride, int64_t out_column_stride,
                   uint64_t stream)
{
    struct ed_cuda_gather p;
    const uint64_t rows = place_rows(&p, plan, outer, out, out_stride, out_column_stride);
    if (rows == 0)
        return 0;
    p.ids = ids;
    p.ids_64 = (uint32_t)ids_64;
    p.ids_stride = ids_stride;
    if (route->lane && rows >= route->lane->from_rows && rows <= route->lane->most_rows)
        return launch_mix(&p, route, rows, stream);
    if (route->table)
        ed_table_count(route->table, rows);
    return ed_cuda_launch(route->direct, (uint32_t)((rows + WARPS - 1) / WARPS), BLOCK, &p, stream);
}

int ed_cuda_gather_form(const struct ed_cuda_form *form, uint64_t ids, uint64_t out, uint64_t stream)
{
    return ed_cuda_gather(form->plan, form->route, ids, (int)form->ids_64, form->ids_stride, form->outer, out,
                          form->out_stride, form->out_column_stride, stream);
}

int ed_cuda_hash(const struct ed_cuda_hash *batch, uint64_t function, uint64_t stream)
{
    const uint64_t ids = (uint64_t)batch->count * batch->layers * batch->heads;
    const uint64_t blocks = (ids + BLOCK - 1) / BLOCK;
    if (ids == 0)
        return 0;
    return ed_cuda_launch(function, (uint32_t)(blocks < HASH_BLOCKS ? blocks : HASH_BLOCKS), BLOCK, batch, stream);
}
