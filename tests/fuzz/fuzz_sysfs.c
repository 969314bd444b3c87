// SPDX-License-Identifier: Apache-2.0
// The core's reader of sysfs and the udev helper's, for libFuzzer. An input is a tree: a line for each, "PATH=CONTENT"
// for a file, "PATH>TARGET" for a link, or a folder's path; tests/fuzz/tree_texts.py reads the same.
#define _GNU_SOURCE
#include "device.h"
#include "sysfs.h"

#include <ctype.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINES = 400, MAX_LINE = 4000 };

// Thousands of files in each second: in memory, where TMPDIR says so.
static char work[200], root[sizeof work + 8];

static void clean_up(void)
{
    rmdir(work);
}

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    const char *folder = getenv("TMPDIR");
    snprintf(work, sizeof work, "%s/engramdax-fuzz-XXXXXX", folder ? folder : "/tmp");
    if (!mkdtemp(work))
        abort();
    snprintf(root, sizeof root, "%s/sys", work);
    atexit(clean_up);
    return 0;
}

// A path that stays inside: without "..", an empty part or a leading slash.
static bool is_inside(const char *path)
{
    if (!*path)
        return false;
    for (const char *part = path;; part++) {
        const size_t bytes = strcspn(part, "/");
        if (bytes == 0 || bytes > 255 || (bytes <= 2 && strspn(part, ".") >= bytes))
            return false;
        part += bytes;
        if (!*part)
            return true;
    }
}

// A link that does not leave the tree for this machine's own devices and pipes, which may wait for ever.
static bool is_harmless(const char *path, const char *target)
{
    int depth = 0;
    if (*target == '/')
        return strncmp(target, "/nowhere", 8) == 0;
    for (const char *c = path; *c; c++)
        depth += *c == '/';
    for (const char *part = target; *part;) {
        const size_t bytes = strcspn(part, "/");
        if (bytes == 2 && part[0] == '.' && part[1] == '.')
            depth--;
        else if (bytes && !(bytes == 1 && *part == '.'))
            depth++;
        // A part may be a link itself, which stands no deeper than its own name.
        if (depth < 0)
            return false;
        part += bytes + (part[bytes] == '/');
    }
    return true;
}

static void make_folders(int at, char *path)
{
    for (char *slash = path; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdirat(at, path, 0755);
        *slash = '/';
    }
}

static void make(int at, char *line)
{
    char *mark = line + strcspn(line, "=>");
    const char kind = *mark;
    *mark = '\0'; // what follows it, if anything, is at mark + 1
    if (!is_inside(line))
        return;
    make_folders(at, line);
    if (kind == '>') {
        if (is_harmless(line, mark + 1))
            (void)!symlinkat(mark + 1, at, line);
    } else if (kind == '=') {
        const int fd = openat(at, line, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (fd >= 0) {
            dprintf(fd, "%s\n", mark + 1);
            close(fd);
        }
    } else {
        mkdirat(at, line, 0755);
    }
}

static int take_away(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)where;
    return kind == FTW_DP || kind == FTW_DNR ? rmdir(path) : unlink(path);
}

// What becomes the name of a link in /dev.
static void require_plain(const char *text, size_t room)
{
    const size_t length = strnlen(text, room);
    if (length == room)
        abort();
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._:-", text[i]))
            abort();
}

static void ask_helper(const char *name)
{
    struct device device;
    struct identity identity;
    if (!find_device(root, name, &device))
        return;
    if (!device.align || device.align & (device.align - 1) || device.size == UINT64_MAX)
        abort();
    identify(root, &device, &identity);
    require_plain(identity.serials, sizeof identity.serials);
    require_plain(identity.place, sizeof identity.place);
    require_plain(identity.namespace_uuid, sizeof identity.namespace_uuid);
}

static void ask_core(void)
{
    struct ed_sysfs tree;
    if (ed_sysfs_read(root, &tree))
        return;
    for (uint64_t i = 0; i < tree.count; i++) {
        const struct ed_sysfs_item item = tree.items[i];
        if (item.kind > ED_SYSFS_FOLDER || (i == 0 && item.kind != ED_SYSFS_OBJECT) ||
            (uint64_t)item.name + item.name_bytes > tree.text_bytes ||
            (uint64_t)item.value + item.value_bytes > tree.text_bytes)
            abort();
        const char *name = (const char *)tree.text + item.name, *value = (const char *)tree.text + item.value;
        const char folder[] = "bus/dax/devices";
        if (item.kind == ED_SYSFS_OBJECT && item.name_bytes == strlen(folder) &&
            memcmp(name, folder, strlen(folder)) == 0 && item.value_bytes) {
            char *device = strndup(value, item.value_bytes);
            ask_helper(device);
            free(device);
        }
    }
    ed_sysfs_free(&tree);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (mkdir(root, 0755))
        abort();
    const int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        abort();
    // A copy in which lines can be ended.
    char *text = calloc(1, bytes + 2);
    if (!text)
        abort();
    if (bytes)
        memcpy(text, data, bytes);
    char *line = text;
    for (int i = 0; i < MAX_LINES && line < text + bytes; i++) {
        char *end = line + strcspn(line, "\n");
        *end = '\0';
        if (end - line < MAX_LINE)
            make(at, line);
        line = end + 1;
    }
    free(text);
    close(at);
    ask_core();
    if (nftw(root, take_away, 16, FTW_DEPTH | FTW_PHYS))
        abort();
    return 0;
}
