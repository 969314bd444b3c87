// SPDX-License-Identifier: Apache-2.0
// What the superblock of a pool says of it (docs/format.md), as far as names of its device need it.
//
// A pure function of bytes. It believes what engramdax/format/superblock.py believes and nothing else: tests/udev
// compares both. A pool of a version that this code does not know is none here, so its device gets no name and no
// group.
#ifndef ENGRAMDAX_UDEV_SUPERBLOCK_H
#define ENGRAMDAX_UDEV_SUPERBLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { SUPERBLOCK_BYTES = 4096, MAX_NAME = 64, UUID_TEXT = 36, MAX_COPIES = 3 };

struct pool {
    char uuid[UUID_TEXT + 1];
    char name[MAX_NAME + 1]; // "" where the name cannot be that of a file: . and ..
};

// Whether these SUPERBLOCK_BYTES are the superblock of a pool that fits media of `media_bytes`; fills `ret` if so.
bool read_superblock(const uint8_t *bytes, uint64_t media_bytes, struct pool *ret);

// Where the copies of the superblock lie in a pool that fills `media_bytes`, as superblock_places() in
// engramdax/format/geometry.py says it; gives their number.
int superblock_places(uint64_t media_bytes, uint64_t places[MAX_COPIES]);

#endif
