// SPDX-License-Identifier: Apache-2.0
#include "interleave.h"

#include <stddef.h>
#include <string.h>

void ed_interleave(const uint8_t *const *columns, const uint32_t *widths, uint32_t count, uint64_t rows, uint8_t *out)
{
    // DeepSeek-V4.1's columns have constant widths, for which the compiler emits plain vector moves.
    if (count == 2 && widths[0] == 256 && widths[1] == 8) {
        const uint8_t *values = columns[0], *scales = columns[1];
        for (uint64_t r = 0; r < rows; r++, out += 264, values += 256, scales += 8) {
            memcpy(out, values, 256);
            memcpy(out + 256, scales, 8);
        }
        return;
    }
    for (uint64_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < count; c++) {
            memcpy(out, columns[c] + r * widths[c], widths[c]);
            out += widths[c];
        }
    }
}
