// SPDX-License-Identifier: Apache-2.0
// Packing of dense columns into rows: values [rows, 256] and scales [rows, 8] become rows of 264 bytes.
#ifndef ENGRAMDAX_INTERLEAVE_H
#define ENGRAMDAX_INTERLEAVE_H

#include <stdint.h>

// Row r of `out` is row r of each of the `count` columns, one after the other; column c is dense with
// `widths[c]` bytes a row. `out` overlaps no column.
void ed_interleave(const uint8_t *const *columns, const uint32_t *widths, uint32_t count, uint64_t rows, uint8_t *out);

#endif
