// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's driver that c/cuda.c launches kernels by, for the emulated GPU. A CUfunction is a Kernel.
// c/cuda.c is compiled as it is, but that it finds them in this program: its dlopen is open_this_program.
#include <cstdint>
#include <cstring>
#include <dlfcn.h>

#include "chance.h"
#include "gpu.h"
#include "happened.h"

namespace
{
const int OK = 0, NOT_SUPPORTED = 801;
const int PROGRAMMATIC_STREAM_SERIALIZATION = 6;

struct Attribute { // CUlaunchAttribute
    int id;
    char spare[4];
    union {
        char size[64];
        int allowed;
    } value;
};

struct Config { // CUlaunchConfig
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    const Attribute *attributes;
    unsigned attribute_count;
};

// Blocks of a launch: fewer than are asked for, at times, where several post. Each has rows for further turns then, as
// in calls that are too large for a trial.
unsigned blocks_of(const Kernel *kernel, unsigned asked)
{
    if (strcmp(kernel->name, "post_many") != 0 || asked == 1 || chance.one_in(2))
        return asked;
    happened["launches that post with fewer blocks"]++;
    return 1 + chance.below(asked - 1);
}
} // namespace

extern "C" {

void *open_this_program(const char *, int)
{
    return dlopen(nullptr, RTLD_NOW);
}

int cuInit(unsigned)
{
    return OK;
}

int cuLaunchKernel(const Kernel *kernel, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned shared_bytes, void *stream, void **parameters, void **)
{
    gpu.launch((uint64_t)stream, kernel, blocks_of(kernel, grid), threads, shared_bytes, false, parameters);
    return OK;
}

int cuLaunchKernelEx(const Config *config, const Kernel *kernel, void **parameters, void **)
{
    bool early = false;
    for (unsigned i = 0; i < config->attribute_count; i++)
        early |= config->attributes[i].id == PROGRAMMATIC_STREAM_SERIALIZATION && config->attributes[i].value.allowed;
    gpu.launch((uint64_t)config->stream, kernel, blocks_of(kernel, config->grid[0]), config->block[0],
               config->shared_bytes, early, parameters);
    return OK;
}

int cuStreamIsCapturing(void *, int *capturing)
{
    *capturing = 0;
    return OK;
}

int cuGetErrorName(int, const char **name)
{
    *name = "an error of the emulated GPU";
    return OK;
}

int cuGetErrorString(int, const char **text)
{
    *text = "an error of the emulated GPU";
    return OK;
}

// What no launch needs.

int cuDeviceGet(int *, int)
{
    return NOT_SUPPORTED;
}

int cuDevicePrimaryCtxRetain(void **, int)
{
    return NOT_SUPPORTED;
}

int cuCtxGetCurrent(void **)
{
    return NOT_SUPPORTED;
}

int cuCtxSetCurrent(void *)
{
    return NOT_SUPPORTED;
}

int cuMemHostRegister_v2(void *, size_t, unsigned)
{
    return NOT_SUPPORTED;
}

int cuMemHostUnregister(void *)
{
    return NOT_SUPPORTED;
}

int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned)
{
    return NOT_SUPPORTED;
}
}
