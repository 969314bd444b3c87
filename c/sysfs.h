// SPDX-License-Identifier: Apache-2.0
// What sysfs says of dax devices, nvdimm regions and namespaces, and the CXL devices behind them, in one pass.
//
// The result is a list of items: each object (a device of a bus, a dax region, a memory block) begins with
// ED_SYSFS_OBJECT and ED_SYSFS_PATH, and what follows up to the next object is its own. Values are the bytes that the
// kernel gave, without the line break at their end: what they mean is for the caller to say. The same items, written
// out as files again, are a tree that gives the same items, which is how a machine is captured.
//
// Devices come and go meanwhile. One that is gone when it has been read is left out. An attribute that does not exist
// is left out; one that cannot be read is an item with its error.
#ifndef ENGRAMDAX_SYSFS_H
#define ENGRAMDAX_SYSFS_H

#include <stdint.h>

enum ed_sysfs_kind {
    ED_SYSFS_OBJECT,    // name: the folder it was found in ("bus/dax/devices"), value: its name there
    ED_SYSFS_PATH,      // value: where it is, relative to the root
    ED_SYSFS_ATTRIBUTE, // name: the file, relative to the object's folder, value: what it holds
    ED_SYSFS_LINK,      // name: the link, value: where it leads to, relative to the root
    ED_SYSFS_FOLDER,    // name: a folder below the object's, value: an entry of it
};

// Places of texts are offsets into `text`. `error` is 0, or the positive errno that the value could not be had for.
struct ed_sysfs_item {
    uint32_t kind;
    uint32_t error;
    uint32_t name;
    uint32_t name_bytes;
    uint32_t value;
    uint32_t value_bytes;
};

struct ed_sysfs {
    uint8_t *text;
    struct ed_sysfs_item *items;
    uint64_t text_bytes;
    uint64_t count;
    uint64_t text_room;
    uint64_t item_room;
};

// Read what there is below `root`, where /sys is mounted, or a captured tree was unpacked. A kernel without CXL, nvdimm
// or dax has no such folders: no objects. A folder that cannot be listed is an object without a name, its error in
// ED_SYSFS_OBJECT.
// Returns 0, or -errno: the root itself cannot be opened, no memory, or -E2BIG where there is more than any host has
// (a million items). On an error there is nothing to free.
int ed_sysfs_read(const char *root, struct ed_sysfs *ret);

// Free what a read gave.
void ed_sysfs_free(struct ed_sysfs *tree);

#endif
