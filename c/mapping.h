// SPDX-License-Identifier: Apache-2.0
// Mappings of a pool's memory: a devdax device, a hugetlbfs, tmpfs or disk file.
//
// Functions return 0 or -errno; on an error nothing is mapped and `ret` is left alone.
#ifndef ENGRAMDAX_MAPPING_H
#define ENGRAMDAX_MAPPING_H

#include <stdint.h>

struct ed_mapping {
    uint8_t *address;
    uint64_t length;
};

// Map [0, length) of `fd`, MAP_SHARED, at an address that is a multiple of `align` (a power of two, at
// least the page size), read-only or writable. On devdax and hugetlbfs `length` is a multiple of their
// page size. `huge` asks for transparent huge pages; where the file
// system has none that is no error.
int ed_map(int fd, uint64_t length, uint64_t align, int writable, int huge, struct ed_mapping *ret);

void ed_unmap(struct ed_mapping *mapping);

// Put another file of the same length into the place of a writable mapping, or zeros of this process alone for -1:
// pointers into it stay good, for threads that use them meanwhile, too.
int ed_map_instead(const struct ed_mapping *mapping, int fd);

// Fault all pages of [offset, offset + length) in, for writing or for reading, in one system call.
// A kernel before 5.14 has no such call: -EINVAL, and the pages come one by one at first touch.
int ed_populate(const struct ed_mapping *mapping, uint64_t offset, uint64_t length, int writable);

// The magic number of the file system that `fd` lives on and its block size (hugetlbfs: the page size).
int ed_file_system(int fd, uint64_t *magic, uint64_t *block_size);

// Which pages of [offset, offset + length) of a file are in the page cache: `pages` gets one byte, 0 or
// 1, per page; `offset` is a multiple of the page size. The kernel tells it only to somebody who could
// write to the file and says "all of them" to everybody else.
int ed_resident_pages(int fd, uint64_t offset, uint64_t length, uint8_t *pages);

#endif
