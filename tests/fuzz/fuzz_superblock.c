// SPDX-License-Identifier: Apache-2.0
// The udev helper's reader of superblocks, for libFuzzer. An input is the size of the media (u64), a byte that says
// whether the checksum is made right, and as much of a superblock as there is, from its magic on.
#define _GNU_SOURCE
#include "../../udev/superblock.c"

#include <stdlib.h>

static bool is_text(const char *text, size_t room)
{
    const size_t length = strnlen(text, room);
    for (size_t i = 0; i < length; i++)
        if (!is_name_character((uint8_t)text[i]))
            return false;
    return length < room;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { HEAD = 9 };
    if (bytes < HEAD)
        return 0;
    const uint64_t media = number(data, 8);
    // On the heap, and of the very size, so that the sanitizer sees a step beyond it.
    uint8_t *superblock = calloc(1, SUPERBLOCK_BYTES);
    if (!superblock)
        abort();
    const size_t length = bytes - HEAD < SUPERBLOCK_BYTES ? bytes - HEAD : SUPERBLOCK_BYTES;
    memcpy(superblock, data + HEAD, length);
    if (data[8] & 1) {
        const uint32_t crc = crc32c(superblock, CRC_OFFSET);
        for (int i = 0; i < 4; i++)
            superblock[CRC_OFFSET + i] = (uint8_t)(crc >> 8 * i);
    }
    struct pool pool;
    if (read_superblock(superblock, media, &pool)) {
        if (strlen(pool.uuid) != UUID_TEXT || !is_text(pool.uuid, sizeof pool.uuid) ||
            !is_text(pool.name, sizeof pool.name) || number(superblock + AT_SIZE, 8) > media)
            abort();
    }
    free(superblock);
    uint64_t places[MAX_COPIES];
    const int count = superblock_places(media, places);
    for (int i = 0; i < count; i++)
        if (count > 1 && (places[i] > media || SUPERBLOCK_BYTES > media - places[i]))
            abort();
    return 0;
}
