// SPDX-License-Identifier: Apache-2.0
// What the helper makes of superblocks: for each record on stdin, the size of the media (u64) and 4096 bytes, one line
// on stdout, "-" or "UUID NAME".
#include "superblock.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    uint64_t media_bytes;
    while (fread(&media_bytes, sizeof media_bytes, 1, stdin) == 1) {
        // On the heap, and of the very size, so that the sanitizer sees a step beyond it.
        uint8_t *bytes = malloc(SUPERBLOCK_BYTES);
        if (!bytes || fread(bytes, SUPERBLOCK_BYTES, 1, stdin) != 1)
            return 1;
        struct pool pool;
        if (read_superblock(bytes, media_bytes, &pool))
            printf("%s %s\n", pool.uuid, pool.name);
        else
            puts("-");
        free(bytes);
    }
    return 0;
}
