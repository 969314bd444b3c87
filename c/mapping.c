// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "mapping.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ // Linux 5.14; the headers of older systems lack them
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

int ed_map(int fd, uint64_t length, uint64_t align, int writable, int huge, struct ed_mapping *ret)
{
    if (length == 0 || length > UINT64_MAX - align)
        return -EINVAL;
    // A file's mapping is placed on a 4 KiB boundary, where no huge page fits: reserve more and choose.
    const uint64_t reserved = length + align;
    uint8_t *reservation = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reservation == MAP_FAILED)
        return -errno;
    uint8_t *address = (uint8_t *)(((uintptr_t)reservation + align - 1) & ~(uintptr_t)(align - 1));
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mmap(address, length, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        const int error = errno;
        munmap(reservation, reserved);
        return -error;
    }
    if (address > reservation)
        munmap(reservation, (size_t)(address - reservation));
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint8_t *end = address + ((length + page - 1) & ~(page - 1));
    if (end < reservation + reserved)
        munmap(end, (size_t)(reservation + reserved - end));
    if (huge)
        (void)madvise(address, length, MADV_HUGEPAGE);
    // Hundreds of GB of embeddings are no part of a core dump.
    (void)madvise(address, length, MADV_DONTDUMP);
    ret->address = address;
    ret->length = length;
    return 0;
}

void ed_unmap(struct ed_mapping *mapping)
{
    if (mapping->address)
        munmap(mapping->address, mapping->length);
    mapping->address = NULL;
    mapping->length = 0;
}

int ed_map_instead(const struct ed_mapping *mapping, int fd)
{
    const int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    return mmap(mapping->address, mapping->length, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED ? -errno : 0;
}

int ed_populate(const struct ed_mapping *mapping, uint64_t offset, uint64_t length, int writable)
{
    if (offset > mapping->length || length > mapping->length - offset)
        return -ERANGE;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = offset & ~(page - 1);
    if (madvise(mapping->address + begin, offset + length - begin, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
        return -errno;
    return 0;
}

int ed_file_system(int fd, uint64_t *magic, uint64_t *block_size)
{
    struct statfs fs;
    if (fstatfs(fd, &fs))
        return -errno;
    *magic = (uint64_t)fs.f_type & UINT32_MAX;
    *block_size = (uint64_t)fs.f_bsize;
    return 0;
}

int ed_resident_pages(int fd, uint64_t offset, uint64_t length, uint8_t *pages)
{
    if (length == 0)
        return 0;
    void *address = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (address == MAP_FAILED)
        return -errno;
    int result = mincore(address, length, pages) ? -errno : 0;
    munmap(address, length);
    if (result == 0) {
        const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        for (uint64_t i = 0; i < (length + page - 1) / page; i++)
            pages[i] &= 1; // the other bits are reserved
    }
    return result;
}
