// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <cstring>
#include <utility>

#include "chance.h"
#include "failure.h"
#include "float8.h"

std::vector<uint8_t> Rows::result(int64_t id) const
{
    std::vector<uint8_t> found(out_bytes());
    if (id < 0)
        return found;
    const uint8_t *row = base + (uint64_t)id * row_bytes;
    if (!dim)
        memcpy(found.data(), row, row_bytes);
    for (uint32_t i = 0; i < dim; i++) {
        const uint16_t half = rounded(e4m3(row[i]) * e8m0(row[dim + i / 32]), (int)form->mantissa);
        memcpy(found.data() + 2 * i, &half, sizeof half);
    }
    return found;
}

Call::Call(Memory &memory, const Rows &rows, std::vector<int64_t> wanted_rows, uint32_t columns)
    : rows(rows), wanted(std::move(wanted_rows)), columns(columns), outer((uint32_t)wanted.size() / columns),
      noted(wanted.size() * rows.parts())
{
    const uint32_t align = rows.form->unit;
    column_stride = (rows.out_bytes() + align - 1) / align * align + align * chance.below(3);
    outer_stride = columns * column_stride + align * chance.below(3);
    out = memory.give<uint8_t>("the output", bytes(), align);
    before.assign(out, out + bytes());
}

bool Call::note(const uint8_t *row, uint32_t part)
{
    if (row < out || row >= out + bytes())
        return false;
    const uint64_t offset = (uint64_t)(row - out);
    const uint32_t t = (uint32_t)(offset / outer_stride), column = (uint32_t)(offset % outer_stride / column_stride);
    const uint32_t i = t * columns + column;
    if (column >= columns || place(i) != offset || part >= rows.parts())
        fail("part %u is written at byte %llu of the output, where no row begins", part, (unsigned long long)offset);
    if (noted[i * rows.parts() + part])
        fail("part %u of row %u is written twice", part, i);
    noted[i * rows.parts() + part] = true;
    return true;
}

uint32_t Call::check(bool zeros) const
{
    const uint32_t parts = rows.parts();
    std::vector<uint8_t> expected = before;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < wanted.size(); i++) {
        for (uint32_t part = 0; part < parts; part++)
            if (!noted[i * parts + part])
                fail("part %u of row %u of %zu is never written", part, i, wanted.size());
        std::vector<uint8_t> row = rows.result(wanted[i]);
        if (zeros && memcmp(out + place(i), row.data(), row.size()) != 0) {
            std::fill(row.begin(), row.end(), 0);
            missing++;
        }
        if (memcmp(out + place(i), row.data(), row.size()) != 0)
            fail("row %u of %zu, which is row %lld of the table, came out wrong", i, wanted.size(),
                 (long long)wanted[i]);
        memcpy(expected.data() + place(i), row.data(), row.size());
    }
    for (uint64_t at = 0; at < bytes(); at++)
        if (out[at] != expected[at])
            fail("byte %llu of the output, between rows, is written", (unsigned long long)at);
    return missing;
}
