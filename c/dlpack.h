// SPDX-License-Identifier: Apache-2.0
// What we need of DLPack's C exchange interface (dlpack.h 1.3), by its names: a type of Python's publishes it as a
// capsule in its attribute __dlpack_c_exchange_api__. Layouts are fixed within a major version.
#ifndef ENGRAMDAX_DLPACK_H
#define ENGRAMDAX_DLPACK_H

#include <stdint.h>

enum { DLPACK_MAJOR = 1 };

#define DLPACK_EXCHANGE_CAPSULE "dlpack_exchange_api"

struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t dtype_code, dtype_bits;
    uint16_t dtype_lanes;
    int64_t *shape;
    int64_t *strides; // in elements
    uint64_t byte_offset;
};

// Functions take Python's objects, want the GIL, and give 0, or -1 with an exception set.
struct dlpack_exchange {
    uint32_t major, minor;
    struct dlpack_exchange *prev_api;
    // We call none of these three.
    int (*managed_tensor_allocator)(void);
    int (*managed_tensor_from_py_object_no_sync)(void);
    int (*managed_tensor_to_py_object_no_sync)(void);
    // What it fills in is right until control goes back to the tensor's library; may be NULL.
    int (*dltensor_from_py_object_no_sync)(void *object, struct dlpack_tensor *ret);
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void **ret);
};

#endif
