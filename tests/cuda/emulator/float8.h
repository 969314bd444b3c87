// SPDX-License-Identifier: Apache-2.0
// What rows of float8 values and their scales come out as, reckoned another way than the kernels do: with doubles,
// which hold each product of a value and a scale.
#ifndef EMULATOR_FLOAT8_H
#define EMULATOR_FLOAT8_H

#include <cmath>
#include <cstdint>

// float8_e4m3fn: sign, 4 bits of exponent, 3 of mantissa; no infinities.
static inline double e4m3(uint8_t byte)
{
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    if (exponent == 15 && mantissa == 7)
        return std::nan("");
    const double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return byte & 0x80 ? -size : size;
}

// float8_e8m0fnu, of which serving engines take 255 for infinity.
static inline double e8m0(uint8_t byte)
{
    return byte == 255 ? HUGE_VAL : std::ldexp(1, byte - 127);
}

// A float of 16 bits, so many of them mantissa, to the nearest, ties to even; any NaN is 0x7fff.
static inline uint16_t rounded(double value, int mantissa)
{
    if (std::isnan(value))
        return 0x7fff;
    const int exponents = 15 - mantissa, lowest = 2 - (1 << (exponents - 1));
    const uint32_t infinity = ((1u << exponents) - 1) << mantissa;
    const double size = std::fabs(value);
    uint32_t bits = infinity;
    if (!std::isinf(value)) {
        const int exponent = size > 0 && std::ilogb(size) > lowest ? std::ilogb(size) : lowest;
        const double units = std::nearbyint(std::ldexp(size, mantissa - exponent));
        const double all = units + std::ldexp(exponent - lowest, mantissa);
        bits = all < infinity ? (uint32_t)all : infinity;
    }
    return (uint16_t)(bits | (std::signbit(value) ? 0x8000 : 0));
}

#endif
