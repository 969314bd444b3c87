// SPDX-License-Identifier: Apache-2.0
// CUDA C++ for kernels.cu, as far as that goes, and what it has in PTX.
#ifndef EMULATOR_DEVICE_H
#define EMULATOR_DEVICE_H

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "failure.h"
#include "gpu.h"
#include "halves.h"
#include "memory.h"

#define __device__
#define __global__ inline
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads)
#define __shared__ thread_local // of the block that runs: gpu.cpp changes them with it

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

struct Axis {
    uint32_t x;
};
#define threadIdx (Axis{place().thread})
#define blockIdx (Axis{place().block})
#define blockDim (Axis{place().threads})
#define gridDim (Axis{place().blocks})

static inline void check_whole_warp(uint32_t mask)
{
    if (mask != ~0u)
        fail("a mask of lanes is %08x", mask);
}

static inline void __syncthreads()
{
    meet_block(0, place().threads);
}

static inline void __syncwarp()
{
    meet_warp("__syncwarp", 0);
}

static inline uint32_t __ballot_sync(uint32_t mask, bool value)
{
    check_whole_warp(mask);
    const uint64_t *given = meet_warp("__ballot_sync", value);
    uint32_t all = 0;
    for (uint32_t i = 0; i < WARP_THREADS; i++)
        all |= (uint32_t)given[i] << i;
    return all;
}

template <typename T> static inline T __shfl_sync(uint32_t mask, T value, uint32_t from)
{
    check_whole_warp(mask);
    return (T)meet_warp("__shfl_sync", (uint64_t)value)[from % WARP_THREADS];
}

static inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value)
{
    check_whole_warp(mask);
    const uint64_t *given = meet_warp("__reduce_add_sync", value);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < WARP_THREADS; i++)
        sum += (uint32_t)given[i];
    return sum;
}

static inline int __popc(uint32_t value)
{
    return __builtin_popcount(value);
}

static inline int __ffs(uint32_t value)
{
    return __builtin_ffs((int)value);
}

// Of memory that does not change while the kernel runs: it may come out of a cache that is not coherent.
template <typename T> static inline T __ldg(const T *from)
{
    if (may_change(from))
        fail("memory that changes is read past the coherent caches");
    perhaps_pause();
    return *from;
}

static inline void __threadfence()
{
    perhaps_pause();
}

static inline void __threadfence_system()
{
    perhaps_pause();
}

template <typename T> static inline T atomicAdd(T *at, std::common_type_t<T> value)
{
    perhaps_sleep();
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicExch(T *at, std::common_type_t<T> value)
{
    perhaps_sleep();
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicCAS(T *at, std::common_type_t<T> old, std::common_type_t<T> value)
{
    perhaps_sleep();
    __atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}

static inline void __nanosleep(uint32_t ns)
{
    sleep_for(ns);
}

template <typename To, typename From> static inline To same_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline float __int_as_float(int bits)
{
    return same_bits<float>(bits);
}

static inline float __uint_as_float(uint32_t bits)
{
    return same_bits<float>(bits);
}

static inline uint32_t __float_as_uint(float value)
{
    return same_bits<uint32_t>(value);
}

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// What kernels.cu has in PTX.

struct Bf16 {
    static uint32_t pack(float low, float high)
    {
        return bf16_of(low) | (uint32_t)bf16_of(high) << 16;
    }
};

struct Fp16 {
    static uint32_t pack(float low, float high)
    {
        return fp16_of(low) | (uint32_t)fp16_of(high) << 16;
    }
};

static inline uint32_t load_acquire(const uint32_t *from)
{
    pause_thread();
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

static inline unsigned long long load_acquire(const unsigned long long *from)
{
    pause_thread();
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

static inline void store_release(unsigned long long *to, unsigned long long value)
{
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
    perhaps_pause();
}

static inline uint32_t load_acquire_block(const uint32_t *from)
{
    pause_thread();
    return *from;
}

static inline void store_release_block(uint32_t *to, uint32_t value)
{
    *to = value;
    perhaps_pause();
}

static inline uint64_t clock_ns()
{
    return gpu.clock += 10;
}

static inline void let_next_begin()
{
    let_next_launch_begin();
}

static inline void wait_for_last()
{
    wait_for_last_launch();
}

static inline uint4 *launched_shared()
{
    return (uint4 *)shared_memory();
}

static inline void bring(uint4 *to, const uint4 *from)
{
    begin_copy(to, from);
}

static inline void wait_for_brought()
{
    end_copies();
}

static inline void meet(uint32_t threads)
{
    if (threads % WARP_THREADS)
        fail("%u threads are no whole warps", threads);
    meet_block(1, threads);
}

#endif
