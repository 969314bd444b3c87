// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "device.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ATTRIBUTE_TEXT = 256, MAX_WAYS = 16, UUID_TEXT = 36 };

// "x/y" of formatted parts; false where that is too long.
__attribute__((format(printf, 3, 4))) static bool print(char *ret, size_t room, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(ret, room, format, arguments);
    va_end(arguments);
    return length >= 0 && (size_t)length < room;
}

// What the kernel says is joined to paths and given to udev: a name of one of its devices, and nothing else.
static bool is_plain(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr("._:-", *c))
            return false;
    }
    return *text && *text != '.';
}

static bool read_attribute(const char *folder, const char *name, char ret[ATTRIBUTE_TEXT])
{
    char path[PATH_MAX];
    if (!print(path, sizeof path, "%s/%s", folder, name))
        return false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, ret, ATTRIBUTE_TEXT - 1);
    close(fd);
    if (length <= 0)
        return false;
    while (length > 0 && isspace((unsigned char)ret[length - 1]))
        length--;
    ret[length] = '\0';
    return strlen(ret) == (size_t)length;
}

static bool read_number(const char *folder, const char *name, uint64_t *ret)
{
    char text[ATTRIBUTE_TEXT], *end;
    // A sign is what strtoull takes and the kernel's unset values (-1) have.
    if (!read_attribute(folder, name, text) || !isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 0);
    // All ones stands for unknown.
    if (errno || *end || value == UINT64_MAX)
        return false;
    *ret = value;
    return true;
}

static bool exists(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return print(path, sizeof path, "%s/%s", folder, name) && access(path, F_OK) == 0;
}

// Go up from `path` to the first folder that has an entry `mark`.
static bool climb(char *path, const char *mark)
{
    for (char *slash; (slash = strrchr(path, '/')) && slash != path;) {
        *slash = '\0';
        if (exists(path, mark))
            return true;
    }
    return false;
}

bool find_device(const char *sysfs, const char *name, struct device *ret)
{
    char path[PATH_MAX];
    if (!is_plain(name) || !print(path, sizeof path, "%s/bus/dax/devices/%s", sysfs, name) ||
        !realpath(path, ret->path))
        return false;
    char number[ATTRIBUTE_TEXT];
    if (!read_attribute(ret->path, "dev", number) || !print(ret->number, sizeof ret->number, "%s", number))
        ret->number[0] = '\0';
    return read_number(ret->path, "size", &ret->size) && read_number(ret->path, "align", &ret->align) && ret->align &&
           !(ret->align & (ret->align - 1));
}

// The serial of the memdev at the position `target` of a region's interleaving; 0, which devices without a serial
// say, identifies nothing. `ret_dpa` is where the region begins on it.
static bool read_target(const char *sysfs, const char *region, int target, char ret[ATTRIBUTE_TEXT], uint64_t *ret_dpa)
{
    char attribute[32], decoder[ATTRIBUTE_TEXT], path[PATH_MAX], memdev[PATH_MAX];
    uint64_t serial;
    // The region names an endpoint's decoder. The endpoint, which the decoder hangs from, has a link to its memdev.
    if (!print(attribute, sizeof attribute, "target%d", target) || !read_attribute(region, attribute, decoder) ||
        !is_plain(decoder))
        return false;
    return print(path, sizeof path, "%s/bus/cxl/devices/%s", sysfs, decoder) && realpath(path, memdev) &&
           read_number(memdev, "dpa_resource", ret_dpa) && climb(memdev, "uport/serial") &&
           print(path, sizeof path, "%s/uport", memdev) && read_number(path, "serial", &serial) && serial != 0 &&
           read_attribute(path, "serial", ret);
}

static bool read_serials(const char *sysfs, const char *region, uint64_t ways, char ret[IDENTITY_TEXT],
                         uint64_t *ret_dpa)
{
    ret[0] = '\0';
    if (ways < 1 || ways > MAX_WAYS)
        return false;
    for (int i = 0; i < (int)ways; i++) {
        char serial[ATTRIBUTE_TEXT], longer[IDENTITY_TEXT];
        uint64_t dpa;
        if (!read_target(sysfs, region, i, serial, i ? &dpa : ret_dpa) || !is_plain(serial) ||
            !print(longer, sizeof longer, "%s%s%s", ret, i ? "-" : "", serial))
            return false;
        memcpy(ret, longer, sizeof longer);
    }
    return true;
}

// Of volatile CXL memory: .../decoder0.0/region2/dax_region2/dax2.0
static void identify_region(const char *sysfs, const struct device *device, struct identity *ret)
{
    char region[PATH_MAX], serials[IDENTITY_TEXT];
    uint64_t ways, begin, resource, dpa;
    memcpy(region, device->path, sizeof region);
    if (!climb(region, "interleave_ways") || !read_number(region, "interleave_ways", &ways) ||
        !read_serials(sysfs, region, ways, serials, &dpa))
        return;
    memcpy(ret->serials, serials, sizeof serials);
    // Several regions may lie on the same memdevs, and several devices in a region.
    if (!read_number(region, "resource", &begin) || !read_number(device->path, "resource", &resource) ||
        resource < begin)
        return;
    const uint64_t offset = dpa + (resource - begin) / ways;
    const bool fits = offset ? print(ret->place, sizeof ret->place, "%s_%#" PRIx64, serials, offset)
                             : print(ret->place, sizeof ret->place, "%s", serials);
    if (!fits)
        ret->place[0] = '\0';
}

// The serials of the memdevs behind an nvdimm region of CXL memory: .../ndbus1/region3 maps .../ndbus1/nmem1.
static bool read_nvdimm_serials(const char *region, uint64_t count, char ret[IDENTITY_TEXT])
{
    ret[0] = '\0';
    if (count < 1 || count > MAX_WAYS)
        return false;
    for (int i = 0; i < (int)count; i++) {
        char attribute[32], mapping[ATTRIBUTE_TEXT], path[PATH_MAX], text[ATTRIBUTE_TEXT], *end;
        char longer[IDENTITY_TEXT];
        if (!print(attribute, sizeof attribute, "mapping%d", i) || !read_attribute(region, attribute, mapping))
            return false;
        mapping[strcspn(mapping, ",")] = '\0';
        if (!is_plain(mapping) || !print(path, sizeof path, "%s/../%s", region, mapping) ||
            !read_attribute(path, "cxl/id", text))
            return false;
        // The kernel prints these 64 bits as a signed number.
        errno = 0;
        const uint64_t serial = text[0] == '-' ? (uint64_t)strtoll(text, &end, 10) : (uint64_t)strtoull(text, &end, 10);
        if (errno || *end || serial == 0 || !print(longer, sizeof longer, "%s%s%#" PRIx64, ret, i ? "-" : "", serial))
            return false;
        memcpy(ret, longer, sizeof longer);
    }
    return true;
}

// Of persistent memory: .../ndbus0/region0/dax0.1/dax0.0; the nd device dax0.1 has the uuid of the info block on the
// media, which `ndctl list` shows.
static void identify_namespace(const struct device *device, struct identity *ret)
{
    char path[PATH_MAX], uuid[ATTRIBUTE_TEXT], serials[IDENTITY_TEXT];
    uint64_t mappings;
    memcpy(path, device->path, sizeof path);
    if (!climb(path, "namespace"))
        return;
    if (read_attribute(path, "uuid", uuid) && is_plain(uuid) && strlen(uuid) == UUID_TEXT)
        memcpy(ret->namespace_uuid, uuid, UUID_TEXT + 1);
    if (climb(path, "mappings") && read_number(path, "mappings", &mappings) &&
        read_nvdimm_serials(path, mappings, serials))
        memcpy(ret->serials, serials, sizeof serials);
}

void identify(const char *sysfs, const struct device *device, struct identity *ret)
{
    memset(ret, 0, sizeof *ret);
    identify_region(sysfs, device, ret);
    identify_namespace(device, ret);
}
