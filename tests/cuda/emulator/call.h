// SPDX-License-Identifier: Apache-2.0
// One gather of a trial: what is asked for, where it goes, and what has to stand there in the end.
#ifndef EMULATOR_CALL_H
#define EMULATOR_CALL_H

#include <cstdint>
#include <vector>

#include "memory.h"

// What rows come out as.
struct Form {
    const char *name;  // of the kernels, behind gather_ and mixed_
    uint32_t unit;     // bytes that are moved at once
    uint32_t mantissa; // of float8 rows that come out as floats of 16 bits: bits of that; 0: rows come out as they are
};

struct Rows {
    const Form *form;
    uint64_t row_bytes;
    uint32_t dim; // values of a float8 row, else 0
    uint32_t count;
    const uint8_t *base;

    uint64_t out_bytes() const
    {
        return dim ? 2 * dim : row_bytes;
    }

    // Parts that a row is copied in.
    uint32_t parts() const
    {
        return dim ? dim / 8 : (uint32_t)(row_bytes / form->unit);
    }

    // What row `id` comes out as; zeros for -1.
    std::vector<uint8_t> result(int64_t id) const;
};

class Call
{
  public:
    // `wanted`: a row or -1 for each place, `columns` of them side by side.
    Call(Memory &memory, const Rows &rows, std::vector<int64_t> wanted, uint32_t columns);

    // Note that part `part` of the row at `row` is written, once; false if it is no row of this call.
    bool note(const uint8_t *row, uint32_t part);

    // Check all of the output. `zeros`: whether rows may be missing. Gives how many are.
    uint32_t check(bool zeros) const;

    const Rows &rows;
    const std::vector<int64_t> wanted;
    const uint32_t columns, outer;
    uint64_t column_stride, outer_stride; // bytes
    uint8_t *out;

  private:
    uint64_t place(uint32_t i) const
    {
        return i / columns * outer_stride + i % columns * column_stride;
    }

    uint64_t bytes() const
    {
        return (outer - 1) * outer_stride + (columns - 1) * column_stride + rows.out_bytes();
    }

    std::vector<bool> noted;     // [rows][parts]
    std::vector<uint8_t> before; // what stands at `out`
};

#endif
