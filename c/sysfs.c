// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "sysfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_ITEMS = 1 << 20,
    MAX_TEXT = 1 << 28,
    MAX_VALUE = 4096,     // a page is what an attribute of sysfs can have
    MAX_NUMBERED = 64,    // more targets (16) or mappings (32) of a region than the kernel allows
    MAX_LISTED = 256,     // block devices of a namespace, their holders
    MAX_BLOCKS = 1 << 18, // blocks of system RAM that a device is: 32 TiB in the smallest, of 128 MiB
    MAX_PATH = 1024,
};

// In names, '#' stands for one or more digits.
struct kind {
    const char *folder;
    const char *name;
    const char *const *attributes;
    const char *const *links;
    // Numbered from 0 up to the first that is missing.
    const char *numbered;
    bool is_dax, has_blocks;
};

struct reader {
    struct ed_sysfs *tree;
    int root;
    uint64_t block; // bytes of a memory block, 0 before it was asked for
    char last_region[MAX_PATH];
};

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *const FOLDERS[] = {"bus/dax/devices", "bus/nd/devices", "bus/cxl/devices"};
static const char *const DAX_REGION[] = {"id", "size", "available_size", "align", NULL};

static const struct kind KINDS[] = {
    {"bus/dax/devices", "dax#.#", LIST("dev", "size", "align", "target_node", "numa_node", "resource"), LIST("driver"),
     NULL, true, false},
    {"bus/nd/devices", "ndbus#", LIST("provider"), LIST("driver"), NULL, false, false},
    {"bus/nd/devices", "nmem#", LIST("cxl/provider", "cxl/id"), LIST("driver"), NULL, false, false},
    {"bus/nd/devices", "region#",
     LIST("size", "available_size", "resource", "align", "numa_node", "read_only", "mappings"), LIST("driver"),
     "mapping", false, false},
    {"bus/nd/devices", "namespace#.#",
     LIST("mode", "size", "resource", "uuid", "alt_name", "numa_node", "target_node", "holder_class"), LIST("driver"),
     NULL, false, true},
    {"bus/nd/devices", "dax#.#", LIST("mode", "size", "align", "uuid", "namespace", "resource"), LIST("driver"), NULL,
     false, false},
    {"bus/nd/devices", "pfn#.#", LIST("mode", "size", "align", "uuid", "namespace", "resource"), LIST("driver"), NULL,
     false, true},
    {"bus/nd/devices", "btt#.#", LIST("size", "uuid", "namespace"), LIST("driver"), NULL, false, true},
    {"bus/cxl/devices", "root#", LIST("devtype", "decoders_committed"), LIST("uport"), NULL, false, false},
    {"bus/cxl/devices", "port#", LIST("devtype", "decoders_committed"), LIST("uport", "driver"), NULL, false, false},
    {"bus/cxl/devices", "endpoint#", LIST("devtype", "decoders_committed"), LIST("uport", "driver"), NULL, false,
     false},
    {"bus/cxl/devices", "decoder#.#",
     LIST("devtype", "start", "size", "locked", "interleave_ways", "interleave_granularity", "region", "mode",
          "dpa_resource", "dpa_size", "cap_ram", "cap_pmem", "cap_type2", "cap_type3"),
     LIST("driver"), NULL, false, false},
    {"bus/cxl/devices", "mem#", LIST("serial", "ram/size", "pmem/size", "numa_node", "firmware_version"),
     LIST("driver"), NULL, false, false},
    {"bus/cxl/devices", "region#",
     LIST("uuid", "mode", "size", "resource", "interleave_ways", "interleave_granularity", "commit"), LIST("driver"),
     "target", false, false},
    {"bus/cxl/devices", "pmem#", LIST("devtype"), LIST("driver"), NULL, false, false},
    {"bus/cxl/devices", "dax_region#", LIST("devtype"), LIST("driver"), NULL, false, false},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool matches(const char *name, const char *pattern)
{
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (*name++ != *pattern)
                return false;
            continue;
        }
        if (!is_digit(*name))
            return false;
        while (is_digit(*name))
            name++;
    }
    return *name == '\0';
}

// The list of items.

static int add_text(struct ed_sysfs *tree, const char *text, uint64_t bytes, uint32_t *place)
{
    if (tree->text_bytes + bytes > MAX_TEXT)
        return -E2BIG;
    if (tree->text_bytes + bytes > tree->text_room) {
        const uint64_t room = 2 * (tree->text_bytes + bytes) + 4096;
        uint8_t *larger = realloc(tree->text, room);
        if (!larger)
            return -ENOMEM;
        tree->text = larger;
        tree->text_room = room;
    }
    if (bytes)
        memcpy(tree->text + tree->text_bytes, text, bytes);
    *place = (uint32_t)tree->text_bytes;
    tree->text_bytes += bytes;
    return 0;
}

static int add(struct ed_sysfs *tree, enum ed_sysfs_kind kind, int error, const char *name, const char *value,
               uint64_t value_bytes)
{
    if (tree->count == MAX_ITEMS)
        return -E2BIG;
    if (tree->count == tree->item_room) {
        const uint64_t room = 2 * tree->count + 256;
        struct ed_sysfs_item *larger = realloc(tree->items, room * sizeof *larger);
        if (!larger)
            return -ENOMEM;
        tree->items = larger;
        tree->item_room = room;
    }
    struct ed_sysfs_item item = {
        .kind = kind,
        .error = (uint32_t)error,
        .name_bytes = (uint32_t)strlen(name),
        .value_bytes = (uint32_t)value_bytes,
    };
    int result = add_text(tree, name, item.name_bytes, &item.name);
    if (result == 0)
        result = add_text(tree, value, value_bytes, &item.value);
    if (result == 0)
        tree->items[tree->count++] = item;
    return result;
}

static int add_object(struct ed_sysfs *tree, const char *folder, const char *name, const char *path)
{
    int result = add(tree, ED_SYSFS_OBJECT, 0, folder, name, strlen(name));
    return result ? result : add(tree, ED_SYSFS_PATH, 0, "", path, strlen(path));
}

// Paths.

// `link` as it reads in `folder`, as a path relative to the root: "." and ".." taken out, which in sysfs is what the
// kernel would do, for only the last part of a path of its folders is ever a link. -EXDEV: it leads out of the root.
static int resolve(const char *folder, const char *link, char path[static MAX_PATH])
{
    size_t length = 0;
    path[0] = '\0';
    for (int i = 0; i < 2; i++) {
        for (const char *part = i ? link : folder; *part;) {
            const size_t bytes = strcspn(part, "/");
            if (bytes == 2 && part[0] == '.' && part[1] == '.') {
                if (length == 0)
                    return -EXDEV;
                while (length && path[--length] != '/')
                    ;
                path[length] = '\0';
            } else if (bytes && !(bytes == 1 && part[0] == '.')) {
                if (length + bytes + 2 > MAX_PATH)
                    return -ENAMETOOLONG;
                if (length)
                    path[length++] = '/';
                memcpy(path + length, part, bytes);
                length += bytes;
                path[length] = '\0';
            }
            part += bytes;
            part += *part == '/';
        }
    }
    return 0;
}

static int read_link(int folder, const char *name, const char *path, char ret[static MAX_PATH])
{
    char link[MAX_PATH];
    const ssize_t bytes = readlinkat(folder, name, link, sizeof link - 1);
    if (bytes < 0)
        return -errno;
    link[bytes] = '\0';
    // An absolute one does not lead where it would lead in the machine that a tree was captured on.
    return link[0] == '/' ? -EXDEV : resolve(path, link, ret);
}

// Objects. An error of one attribute is an item; what these return is an error of the whole.

// A value without the line break at its end; -errno of open or read.
static ssize_t read_value(int folder, const char *name, char value[static MAX_VALUE])
{
    // A tree to be looked at may hold anything: a pipe must not block, a link not lead elsewhere.
    const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY);
    if (fd < 0)
        return -errno;
    ssize_t bytes = 0, more;
    do {
        more = read(fd, value + bytes, (size_t)(MAX_VALUE - bytes));
        bytes += more > 0 ? more : 0;
    } while ((more > 0 && bytes < MAX_VALUE) || (more < 0 && errno == EINTR));
    if (more < 0)
        bytes = -errno;
    close(fd);
    return bytes > 0 && value[bytes - 1] == '\n' ? bytes - 1 : bytes;
}

static int add_attribute(struct ed_sysfs *tree, int folder, const char *name)
{
    char value[MAX_VALUE];
    const ssize_t bytes = read_value(folder, name, value);
    if (bytes == -ENOENT || bytes == -ENOTDIR)
        return 0;
    return add(tree, ED_SYSFS_ATTRIBUTE, bytes < 0 ? (int)-bytes : 0, name, value, bytes < 0 ? 0 : (uint64_t)bytes);
}

static int add_link(struct ed_sysfs *tree, int folder, const char *path, const char *name)
{
    char target[MAX_PATH];
    const int result = read_link(folder, name, path, target);
    if (result == -ENOENT)
        return 0;
    return add(tree, ED_SYSFS_LINK, -result, name, target, result ? 0 : strlen(target));
}

// The folder `name` of `folder`, open; NULL with errno set.
static DIR *open_folder(int folder, const char *name)
{
    const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    DIR *opened = fdopendir(fd);
    if (!opened) {
        const int error = errno;
        close(fd);
        errno = error;
    }
    return opened;
}

// The entries of a folder below an object's.
static int add_entries(struct ed_sysfs *tree, int folder, const char *name)
{
    DIR *entries = open_folder(folder, name);
    if (!entries)
        return errno == ENOENT || errno == ENOTDIR ? 0 : add(tree, ED_SYSFS_FOLDER, errno, name, "", 0);
    int result = 0;
    int count = 0;
    for (struct dirent *entry; result == 0 && count < MAX_LISTED && (entry = readdir(entries));)
        if (entry->d_name[0] != '.') {
            count++;
            result = add(tree, ED_SYSFS_FOLDER, 0, name, entry->d_name, strlen(entry->d_name));
        }
    closedir(entries);
    return result;
}

// The block devices of a namespace, with what the kernel has made of them.
static int add_blocks(struct ed_sysfs *tree, int folder)
{
    const uint64_t first = tree->count;
    int result = add_entries(tree, folder, "block");
    const uint64_t end = tree->count;
    for (uint64_t i = first; result == 0 && i < end; i++) {
        char name[MAX_PATH];
        const struct ed_sysfs_item item = tree->items[i];
        snprintf(name, sizeof name, "block/%.*s/dev", (int)item.value_bytes, (const char *)tree->text + item.value);
        result = add_attribute(tree, folder, name);
        snprintf(name, sizeof name, "block/%.*s/holders", (int)item.value_bytes, (const char *)tree->text + item.value);
        if (result == 0)
            result = add_entries(tree, folder, name);
    }
    return result;
}

// What dax devices are cut from belongs to the device above them, of whatever bus; the devices of one follow each
// other as a rule, so that remembering the last saves most readings.
static int add_dax_region(struct reader *reader, int folder, const char *path)
{
    char region[MAX_PATH];
    if (resolve(path, "../dax_region", region) || strcmp(region, reader->last_region) == 0)
        return 0;
    const int fd = openat(folder, "../dax_region", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    memcpy(reader->last_region, region, sizeof region);
    int result = add_object(reader->tree, "", "dax_region", region);
    for (const char *const *name = DAX_REGION; result == 0 && *name; name++)
        result = add_attribute(reader->tree, fd, *name);
    close(fd);
    return result;
}

// System RAM.

static bool named(const struct ed_sysfs *tree, const struct ed_sysfs_item *item, const char *name)
{
    return item->name_bytes == strlen(name) && memcmp(tree->text + item->name, name, item->name_bytes) == 0;
}

// A whole number: decimal, or hexadecimal after 0x, or with base 16 always hexadecimal.
static bool number(const struct ed_sysfs *tree, const struct ed_sysfs_item *item, int base, uint64_t *ret)
{
    char text[32];
    if (item->error || item->value_bytes == 0 || item->value_bytes >= sizeof text)
        return false;
    memcpy(text, tree->text + item->value, item->value_bytes);
    text[item->value_bytes] = '\0';
    if (strspn(text, "0123456789abcdefABCDEFxX") != item->value_bytes)
        return false;
    char *end;
    errno = 0;
    *ret = strtoull(text, &end, base);
    return errno == 0 && end != text && *end == '\0';
}

static int open_memory(struct reader *reader)
{
    const int memory = openat(reader->root, "devices/system/memory", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (memory < 0 || reader->block)
        return memory;
    reader->block = UINT64_MAX; // asked, and not told
    struct ed_sysfs *tree = reader->tree;
    const uint64_t first = tree->count;
    if (add_object(tree, "devices/system", "memory", "devices/system/memory") ||
        add_attribute(tree, memory, "block_size_bytes"))
        return memory; // whoever adds next has the same error
    uint64_t block;
    if (tree->count == first + 3 && number(tree, &tree->items[first + 2], 16, &block) && block)
        reader->block = block;
    return memory;
}

// The memory blocks of a dax device that is system RAM; `first` is the device's first item.
static int add_memory_blocks(struct reader *reader, uint64_t first)
{
    struct ed_sysfs *tree = reader->tree;
    uint64_t start = UINT64_MAX, size = 0;
    bool kmem = false;
    for (const struct ed_sysfs_item *item = tree->items + first; item < tree->items + tree->count; item++) {
        if (item->kind == ED_SYSFS_OBJECT && item != tree->items + first)
            break;
        if (item->kind == ED_SYSFS_ATTRIBUTE && named(tree, item, "resource"))
            (void)number(tree, item, 0, &start);
        if (item->kind == ED_SYSFS_ATTRIBUTE && named(tree, item, "size"))
            (void)number(tree, item, 0, &size);
        const char end[] = "/kmem";
        const uint32_t bytes = sizeof end - 1;
        if (item->kind == ED_SYSFS_LINK && item->value_bytes > bytes)
            kmem |= memcmp(tree->text + item->value + item->value_bytes - bytes, end, bytes) == 0;
    }
    if (!kmem || start == UINT64_MAX || size > UINT64_MAX - start)
        return 0;
    const int memory = open_memory(reader);
    if (memory < 0)
        return 0;
    // The kernel makes blocks of what lies inside as a whole.
    const uint64_t block = reader->block, begin = start / block + (start % block != 0), end = (start + size) / block;
    int result = 0;
    for (uint64_t i = begin; result == 0 && i < end && i - begin < MAX_BLOCKS; i++) {
        char name[32], path[64];
        snprintf(name, sizeof name, "memory%llu", (unsigned long long)i);
        const int folder = openat(memory, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (folder < 0)
            continue;
        snprintf(path, sizeof path, "devices/system/memory/%s", name);
        result = add_object(tree, "devices/system/memory", name, path);
        if (result == 0)
            result = add_attribute(tree, folder, "state");
        close(folder);
    }
    close(memory);
    return result;
}

// Devices.

static int add_parts(struct reader *reader, const struct kind *kind, int folder, const char *path)
{
    struct ed_sysfs *tree = reader->tree;
    int result = 0;
    for (const char *const *name = kind->attributes; result == 0 && *name; name++)
        result = add_attribute(tree, folder, *name);
    for (const char *const *name = kind->links; result == 0 && *name; name++)
        result = add_link(tree, folder, path, *name);
    for (int i = 0; result == 0 && kind->numbered && i < MAX_NUMBERED; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%d", kind->numbered, i);
        const uint64_t before = tree->count;
        result = add_attribute(tree, folder, name);
        if (tree->count == before)
            break;
    }
    if (result == 0 && kind->has_blocks)
        result = add_blocks(tree, folder);
    return result;
}

// A device with all that belongs to it, or nothing of it if it is gone by then.
static int add_device(struct reader *reader, const struct kind *kind, int devices, const char *name)
{
    struct ed_sysfs *tree = reader->tree;
    const uint64_t items = tree->count, text = tree->text_bytes, block = reader->block;
    char path[MAX_PATH];
    int result = read_link(devices, name, kind->folder, path);
    if (result == -EINVAL) // a folder, in a tree that somebody wrote by hand
        result = resolve(kind->folder, name, path);
    if (result == -ENOENT)
        return 0;
    const int folder = result ? -1 : openat(devices, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        const int error = result ? -result : errno;
        return error == ENOENT || error == ENODEV ? 0
                                                  : add(tree, ED_SYSFS_OBJECT, error, kind->folder, name, strlen(name));
    }
    result = add_object(tree, kind->folder, name, path);
    if (result == 0)
        result = add_parts(reader, kind, folder, path);
    if (result == 0 && kind->is_dax)
        result = add_dax_region(reader, folder, path);
    if (result == 0 && kind->is_dax)
        result = add_memory_blocks(reader, items);
    // What is there under its name by now may be another one that came since.
    struct stat then, now;
    const bool gone = fstat(folder, &then) || fstatat(devices, name, &now, 0) || then.st_dev != now.st_dev ||
                      then.st_ino != now.st_ino;
    close(folder);
    if (result == 0 && gone) {
        tree->count = items;
        tree->text_bytes = text;
        reader->block = block;
        reader->last_region[0] = '\0';
    }
    return result;
}

static int add_devices(struct reader *reader, const char *folder)
{
    DIR *devices = open_folder(reader->root, folder);
    if (!devices)
        return errno == ENOENT || errno == ENOTDIR ? 0 : add(reader->tree, ED_SYSFS_OBJECT, errno, folder, "", 0);
    int result = 0;
    for (struct dirent *entry; result == 0 && (entry = readdir(devices));)
        for (size_t i = 0; result == 0 && i < sizeof KINDS / sizeof KINDS[0]; i++)
            if (strcmp(KINDS[i].folder, folder) == 0 && matches(entry->d_name, KINDS[i].name))
                result = add_device(reader, &KINDS[i], dirfd(devices), entry->d_name);
    closedir(devices);
    return result;
}

// Which drivers are loaded tells what is missing where a device has none.
static int add_drivers(struct reader *reader)
{
    const int bus = openat(reader->root, "bus/dax", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (bus < 0)
        return 0;
    int result = add_object(reader->tree, "bus", "dax", "bus/dax");
    if (result == 0)
        result = add_entries(reader->tree, bus, "drivers");
    close(bus);
    return result;
}

int ed_sysfs_read(const char *root, struct ed_sysfs *ret)
{
    struct ed_sysfs tree = {0};
    struct reader reader = {.tree = &tree, .root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (reader.root < 0)
        return -errno;
    int result = add_drivers(&reader);
    for (size_t i = 0; result == 0 && i < sizeof FOLDERS / sizeof FOLDERS[0]; i++)
        result = add_devices(&reader, FOLDERS[i]);
    close(reader.root);
    if (result)
        ed_sysfs_free(&tree);
    else
        *ret = tree;
    return result;
}

void ed_sysfs_free(struct ed_sysfs *tree)
{
    free(tree->text);
    free(tree->items);
    *tree = (struct ed_sysfs){0};
}
