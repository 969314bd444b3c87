// SPDX-License-Identifier: Apache-2.0
#include "superblock.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

static const char MAGIC[] = "ENGRMDAX";

enum { VERSION = 1, LINE = 64, CRC_OFFSET = 4092, SLOTS = 2 };

// Offsets of the fields: the table in docs/format.md.
enum {
    AT_VERSION = 8,
    AT_BYTES = 12,
    AT_INCOMPAT = 32,
    AT_POOL = 40,
    AT_INDEX = 72,
    AT_COUNT = 76,
    AT_SIZE = 80,
    AT_NAME = 88,
    AT_COPIES = 168,
    AT_COPY_COUNT = 192,
    AT_SLOTS = 200,
    AT_SLOT_BYTES = 216,
    AT_UNIT = 224,
    AT_BLOCK = 232,
};

struct extent {
    uint64_t offset, length;
};

static uint64_t number(const uint8_t *bytes, int count)
{
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

// Bit by bit, without a table: three copies of 4 KiB are done in a fraction of a millisecond.
static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82F63B78) : 0);
    }
    return ~crc;
}

static bool is_name_character(uint8_t c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

static bool read_name(const uint8_t *field, char ret[MAX_NAME + 1])
{
    size_t length = MAX_NAME;
    while (length && !field[length - 1])
        length--;
    for (size_t i = 0; i < length; i++) {
        if (!is_name_character(field[i]))
            return false;
    }
    memcpy(ret, field, length);
    ret[length] = '\0';
    return length > 0;
}

static bool apart(struct extent a, struct extent b)
{
    return a.offset <= b.offset ? b.offset - a.offset >= a.length : a.offset - b.offset >= b.length;
}

// The rules of Geometry.check() in engramdax/format/geometry.py.
static bool geometry_is_possible(const uint8_t *bytes, uint64_t size)
{
    const uint64_t copies = number(bytes + AT_COPY_COUNT, 4), slot_bytes = number(bytes + AT_SLOT_BYTES, 8);
    const uint64_t unit = number(bytes + AT_UNIT, 8), block = number(bytes + AT_BLOCK, 8);
    if (copies < 1 || copies > MAX_COPIES || number(bytes + AT_COPIES, 8) != 0)
        return false;
    if (unit == 0 || (unit & (unit - 1)) || unit % LINE || block < LINE || block % LINE)
        return false;
    if (slot_bytes < 2 * LINE || slot_bytes % LINE)
        return false;
    struct extent areas[MAX_COPIES + SLOTS];
    const int count = (int)copies + SLOTS;
    for (int i = 0; i < (int)copies; i++)
        areas[i] = (struct extent){number(bytes + AT_COPIES + 8 * i, 8), SUPERBLOCK_BYTES};
    for (int i = 0; i < SLOTS; i++)
        areas[(int)copies + i] = (struct extent){number(bytes + AT_SLOTS + 8 * i, 8), slot_bytes};
    for (int i = 0; i < count; i++) {
        if (areas[i].offset % LINE || areas[i].offset > size || areas[i].length > size - areas[i].offset)
            return false;
        for (int j = 0; j < i; j++) {
            if (!apart(areas[i], areas[j]))
                return false;
        }
    }
    return true;
}

bool read_superblock(const uint8_t *bytes, uint64_t media_bytes, struct pool *ret)
{
    if (memcmp(bytes, MAGIC, sizeof MAGIC - 1) || number(bytes + CRC_OFFSET, 4) != crc32c(bytes, CRC_OFFSET))
        return false;
    if (number(bytes + AT_VERSION, 4) != VERSION || number(bytes + AT_BYTES, 4) != SUPERBLOCK_BYTES ||
        number(bytes + AT_INCOMPAT, 8) != 0)
        return false;
    const uint64_t size = number(bytes + AT_SIZE, 8);
    if (size > media_bytes || number(bytes + AT_INDEX, 4) != 0 || number(bytes + AT_COUNT, 4) != 1)
        return false;
    struct pool found;
    if (!read_name(bytes + AT_NAME, found.name) || !geometry_is_possible(bytes, size))
        return false;
    if (!strcmp(found.name, ".") || !strcmp(found.name, ".."))
        found.name[0] = '\0';
    char *text = found.uuid;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *text++ = '-';
        text += snprintf(text, 3, "%02x", bytes[AT_POOL + i]);
    }
    *ret = found;
    return true;
}

int superblock_places(uint64_t media_bytes, uint64_t places[MAX_COPIES])
{
    places[0] = 0;
    if (media_bytes < 16 * MIB)
        return 1;
    places[1] = 2 * MIB;
    if (media_bytes < 2048 * MIB)
        return 2;
    places[2] = media_bytes / (2 * MIB) * (2 * MIB) - 6 * MIB;
    return 3;
}
