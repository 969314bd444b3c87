// SPDX-License-Identifier: Apache-2.0
// A dax device in sysfs, and what stands behind it that is the same on every host and at every boot.
//
// Names like dax2.0, region2 and mem0 are the host's own; a memdev's serial and a namespace's uuid are not. Whatever
// sysfs does not tell, or tells in a way that cannot be right, is left out: "" in the results. Nothing here writes or
// allocates.
#ifndef ENGRAMDAX_UDEV_DEVICE_H
#define ENGRAMDAX_UDEV_DEVICE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

// What a name in /dev can be long, with room for what stands before it.
enum { IDENTITY_TEXT = 200 };

struct device {
    char path[PATH_MAX]; // its folder in sysfs
    char number[32];     // "MAJOR:MINOR" of its node, "" where the kernel has none
    uint64_t size;
    uint64_t align; // a power of two
};

struct identity {
    // Serials of the CXL memdevs behind it as sysfs writes them (0x...), in the order of interleaving, joined by "-".
    char serials[IDENTITY_TEXT];
    // The same and, where it does not begin at the memdevs' first byte, "_0xOFFSET" of where on each it does.
    char place[IDENTITY_TEXT];
    // Of the namespace that it is.
    char namespace_uuid[IDENTITY_TEXT];
};

// Find the dax device `name` below `sysfs`; false where there is none that tells its size and align.
bool find_device(const char *sysfs, const char *name, struct device *ret);

// Tell what it is.
void identify(const char *sysfs, const struct device *device, struct identity *ret);

#endif
