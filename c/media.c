// SPDX-License-Identifier: Apache-2.0
#include "media.h"

#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>

enum { CPUID_7_EBX_CLFLUSHOPT = 1 << 23 };

static void store_lines_sse2(uint8_t *target, const uint8_t *source, uint64_t lines)
{
    for (uint64_t i = 0; i < lines; i++, target += ED_LINE, source += ED_LINE) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(source + 0));
        const __m128i b = _mm_loadu_si128((const __m128i *)(source + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(source + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(source + 48));
        _mm_stream_si128((__m128i *)(target + 0), a);
        _mm_stream_si128((__m128i *)(target + 16), b);
        _mm_stream_si128((__m128i *)(target + 32), c);
        _mm_stream_si128((__m128i *)(target + 48), d);
    }
}

// One store fills the whole line, so that no write-combining buffer can leave in halves.
__attribute__((target("avx512f"))) static void store_lines_avx512(uint8_t *target, const uint8_t *source,
                                                                  uint64_t lines)
{
    for (uint64_t i = 0; i < lines; i++, target += ED_LINE, source += ED_LINE)
        _mm512_stream_si512((__m512i *)target, _mm512_loadu_si512(source));
}

void ed_store_lines(uint8_t *target, const uint8_t *source, uint64_t lines)
{
    if (__builtin_cpu_supports("avx512f"))
        store_lines_avx512(target, source, lines);
    else
        store_lines_sse2(target, source, lines);
}

void ed_fence(void)
{
    _mm_sfence();
}

static bool has_clflushopt(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & CPUID_7_EBX_CLFLUSHOPT);
}

__attribute__((target("clflushopt"))) static void flush_unordered(const uint8_t *line, const uint8_t *end)
{
    for (; line < end; line += ED_LINE)
        _mm_clflushopt((void *)line);
}

static void flush_ordered(const uint8_t *line, const uint8_t *end)
{
    for (; line < end; line += ED_LINE)
        _mm_clflush(line);
}

void ed_invalidate(const uint8_t *address, uint64_t length)
{
    const uint8_t *line = (const uint8_t *)((uintptr_t)address & ~(uintptr_t)(ED_LINE - 1));
    if (has_clflushopt())
        flush_unordered(line, address + length);
    else
        flush_ordered(line, address + length);
    // clflushopt is ordered only by a fence; mfence also keeps later loads behind it.
    _mm_mfence();
}

#elif defined(__aarch64__)

void ed_store_lines(uint8_t *target, const uint8_t *source, uint64_t lines)
{
    // STNP is only a hint, so the line is cleaned to the point of coherency right after it is stored.
    for (uint64_t i = 0; i < lines; i++, target += ED_LINE, source += ED_LINE) {
        memcpy(target, source, ED_LINE);
        __asm__ volatile("dc cvac, %0" ::"r"(target) : "memory");
    }
}

void ed_fence(void)
{
    __asm__ volatile("dsb sy" ::: "memory");
}

void ed_invalidate(const uint8_t *address, uint64_t length)
{
    const uint8_t *line = (const uint8_t *)((uintptr_t)address & ~(uintptr_t)(ED_LINE - 1));
    // User space may clean and invalidate, not invalidate alone; stores go past the caches, so there is
    // nothing dirty to clean.
    for (; line < address + length; line += ED_LINE)
        __asm__ volatile("dc civac, %0" ::"r"(line) : "memory");
    __asm__ volatile("dsb sy" ::: "memory");
}

#else
#error "engramdax knows the cache instructions of x86-64 and aarch64 only"
#endif
