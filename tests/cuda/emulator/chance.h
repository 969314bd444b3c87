// SPDX-License-Identifier: Apache-2.0
// What is left to chance: all of it follows from the seed of the trial, so that a trial can be had again.
#ifndef EMULATOR_CHANCE_H
#define EMULATOR_CHANCE_H

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

class Chance
{
  public:
    void begin(uint64_t seed)
    {
        state = seed;
    }

    // splitmix64
    uint64_t next()
    {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }

    // 0 to n - 1
    uint32_t below(uint32_t n)
    {
        return (uint32_t)((next() >> 32) * n >> 32);
    }

    bool one_in(uint32_t n)
    {
        return below(n) == 0;
    }

    template <typename List> void shuffle(List &list)
    {
        for (size_t i = std::size(list); i > 1; i--)
            std::swap(list[i - 1], list[below((uint32_t)i)]);
    }

    template <typename List> const auto &of(const List &list)
    {
        return list[below((uint32_t)std::size(list))];
    }

  private:
    uint64_t state = 0;
};

extern Chance chance;

#endif
