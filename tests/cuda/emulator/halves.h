// SPDX-License-Identifier: Apache-2.0
// Floats of 16 bits, as the GPU rounds to them: to the nearest, ties to even; any NaN is 0x7fff.
#ifndef EMULATOR_HALVES_H
#define EMULATOR_HALVES_H

#include <cmath>
#include <cstdint>
#include <cstring>

static inline uint16_t bf16_of(float value)
{
    if (std::isnan(value))
        return 0x7fff;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint16_t fp16_of(float value)
{
    if (std::isnan(value))
        return 0x7fff;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const float size = std::fabs(value);
    if (size >= 65520)
        return sign | 0x7c00;
    if (size < 0x1p-14f)
        return sign | (uint16_t)std::nearbyint(size * 0x1p24f);
    bits &= 0x7fffffff;
    return sign | (uint16_t)(((bits + 0xfff + (bits >> 13 & 1)) >> 13) - ((127 - 15) << 10));
}

#endif
