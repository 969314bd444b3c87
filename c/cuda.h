// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, opened at run time: registration of host memory, and launches with prepared parameters.
//
// The driver's own calls, not the runtime's: a failed cudaHostRegister leaves an error behind that an unrelated
// kernel is blamed for later, a failed cuMemHostRegister does not. Functions return 0 or a CUresult. They set the
// device's primary context for the calling thread where it has none, and leave the one it has otherwise.
#ifndef ENGRAMDAX_CUDA_H
#define ENGRAMDAX_CUDA_H

#include <stdint.h>

struct ed_table;

// Open libcuda and initialise it; NULL, or why there is none. `ED_CUDA_ABSENT` in place of a CUresult says that
// this failed.
const char *ed_cuda_open(void);

enum {
    // Beside CUresults, which end at 999.
    ED_CUDA_ABSENT = 10000,
    ED_CUDA_TROUBLE = 10001, // a lane has something to tell of launches before (ed_cuda_gather)
    ED_CUDA_BUSY = 10002,    // the lane has a round in flight (ed_cuda_gather_host)
};

// The driver's name and text for a CUresult.
const char *ed_cuda_error_name(int result);
const char *ed_cuda_error_text(int result);

// Retain and set the primary context of device `ordinal`.
int ed_cuda_use(int ordinal);

// Register [address, address + length) for all contexts, mapped for the GPU, `read_only` where the mapping is. In
// chunks of `chunk` bytes, a multiple of the page size: one call for 512 GiB or more fails on current drivers.
// `*done` counts the bytes registered so far; on an error those before are unregistered again.
int ed_cuda_register(uint8_t *address, uint64_t length, uint64_t chunk, int read_only, uint64_t *done);
int ed_cuda_unregister(uint8_t *address, uint64_t length, uint64_t chunk);

// The GPU's address of registered memory.
int ed_cuda_device_pointer(uint8_t *address, uint64_t *ret);

// As in kernels.cu.
struct ed_cuda_hot {
    uint64_t entries;
    uint64_t rows;
    uint64_t counters;
    uint64_t row_stride;
    uint32_t buckets;
    uint32_t spare;
};

struct ed_cuda_insert {
    uint64_t ids;
    uint64_t entries;
    uint32_t count, buckets;
};

struct ed_cuda_gather {
    uint64_t base;
    uint64_t stride;
    uint64_t row_bytes;
    int64_t row_low, row_high;
    uint64_t head_begins;
    uint32_t first_column, columns, out_columns;
    uint32_t ids_64;
    uint64_t ids;
    int64_t ids_stride;
    uint32_t outer, dim;
    uint64_t out;
    int64_t out_stride;
    int64_t out_column_stride;
    struct ed_cuda_hot hot;
};

struct ed_cuda_hash {
    uint64_t tokens, starts, blocked, history, token_map, orders, multipliers, primes, reciprocals, offsets, out;
    int64_t vocab, pad;
    uint32_t count, sequences, tokens_64, out_64;
    uint32_t layers, heads, heads_per_order, max_ngram;
};

// What the kernels of a mix are given besides; kernels.cu says what it means. Addresses are as the GPU sees them.
struct ed_cuda_mix {
    uint64_t state, local, staged;
    uint64_t ids, message, begun, flags, finished, staging, failed;
    uint64_t token;
    uint64_t deadline_ns, patience_ns;
    uint32_t capacity, chunk_rows, chunk_stride, first_local, local_of_64, staged_blocks;
    uint32_t host_rows, host_sequence;
    uint64_t consumed;
    uint32_t copiers, by_parcels, far_blocks, spare;
};

// A lane as launches see it, and how they mix. What is not said to be fixed may change between launches.
struct ed_cuda_lane {
    struct ed_cuda_mix mix; // addresses, capacity, patience and shares; the rest is of a launch
    struct ed_lane *lane;
    uint64_t take, post_few, post_many; // kernels; fixed
    uint32_t from_rows, most_rows;      // calls of fewer or more rows are direct; most_rows is fixed
    uint32_t blocks;                    // of the kernel that copies, at most, beside those for hot rows
    uint32_t shared_bytes;              // that one of them may have; 0 lets rows be copied one by one
    uint32_t threads;                   // of the CPU; fixed
    uint32_t deadline_us;               // for the chunks of a call, and
    uint32_t deadline_row;              // ns more for each of its rows
    int early;       // whether kernels may be started while those that they wait for run: from sm_90 on
    int keeps_awake; // whether a launch was captured, and the lane told so
    uint64_t token;  // of the last launch; of a lane for ids of the host, its sequence number
};

// The kernels for rows of one form, and the lane where there is one.
struct ed_cuda_route {
    uint64_t direct, mixed;
    struct ed_cuda_lane *lane;
    const struct ed_table *table; // whose counter direct launches add to; NULL: none. A lane counts for itself
};

// Launch a gather: `plan` with these ids and output. Nothing is allocated and nobody waits; may be captured.
// Several threads may launch one plan at once. ED_CUDA_TROUBLE: nothing was launched, since rows of launches before
// could not be read or had at all (ed_lane_unreadable(), `failed` of the mix).
int ed_cuda_gather(const struct ed_cuda_gather *plan, const struct ed_cuda_route *route, uint64_t ids, int ids_64,
                   int64_t ids_stride, uint32_t outer, uint64_t out, int64_t out_stride, int64_t out_column_stride,
                   uint64_t stream);

// All of a launch but its addresses and its stream.
struct ed_cuda_form {
    const struct ed_cuda_gather *plan;
    const struct ed_cuda_route *route;
    int64_t ids_stride, out_stride, out_column_stride;
    uint32_t ids_64, outer;
    uint64_t align; // what the address of the output has to be a multiple of, a power of two
};
int ed_cuda_gather_form(const struct ed_cuda_form *form, uint64_t ids, uint64_t out, uint64_t stream);

// The same for row ids of the host: `ids`, one for each row of `out`, -1 for a row of zeros, at most as many as the
// lane's mailbox holds. They are copied, and the CPU begins at once. The lane serves such calls alone, one thread at a
// time. ED_CUDA_BUSY: nothing was done, since the call before is not over.
int ed_cuda_gather_host(const struct ed_cuda_gather *plan, const struct ed_cuda_route *route, const int32_t *ids,
                        uint32_t outer, uint64_t out, int64_t out_stride, int64_t out_column_stride, uint64_t stream);

// Launch the hash of a batch.
int ed_cuda_hash(const struct ed_cuda_hash *batch, uint64_t function, uint64_t stream);

// Launch any kernel that takes one struct.
int ed_cuda_launch(uint64_t function, uint32_t grid, uint32_t block, const void *parameters, uint64_t stream);

#endif
