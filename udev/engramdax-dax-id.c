// SPDX-License-Identifier: Apache-2.0
// engramdax-dax-id [--sysfs ROOT] NODE
//
// Tells udev what a devdax device is by what is the same on every host and at every boot, as lines KEY=VALUE:
//
//     ENGRAMDAX_SERIAL, ENGRAMDAX_CXL_ID, ENGRAMDAX_NAMESPACE_UUID    of the hardware, from sysfs
//     ENGRAMDAX_POOL_UUID, ENGRAMDAX_POOL_NAME                        of the pool on it, from its superblock
//
// It runs as root in the event of every dax device, so it must not harm the event, whatever the memory holds: it ends
// with 0, prints whole answers or nothing, and never takes longer than DEADLINE_SECONDS. Values have no other
// characters than [A-Za-z0-9._:-], because they become names of files. It never writes to the device and maps it
// read-only. NODE is /dev/NAME of a dax device; a regular file NAME in its place is read like its memory.
#define _GNU_SOURCE
#include "device.h"
#include "media.h"
#include "superblock.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { DEADLINE_SECONDS = 3, ANSWER_BYTES = 4096 };

static sigjmp_buf unreadable;
static volatile sig_atomic_t guarded;
static char answer[ANSWER_BYTES];
static size_t answered;

static void give_up(int number)
{
    (void)number;
    _exit(0);
}

static void leave_page(int number)
{
    if (!guarded) // a page of this program itself
        give_up(number);
    siglongjmp(unreadable, 1);
}

static void prepare(void)
{
    struct sigaction action = {.sa_handler = give_up};
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGPIPE, &action, NULL);
    // udevd may have blocked or ignored what this relies on.
    sigset_t needed;
    sigemptyset(&needed);
    sigaddset(&needed, SIGALRM);
    sigaddset(&needed, SIGBUS);
    sigprocmask(SIG_UNBLOCK, &needed, NULL);
    action.sa_handler = leave_page;
    sigaction(SIGBUS, &action, NULL);
    alarm(DEADLINE_SECONDS);
}

static void add(const char *key, const char *value)
{
    if (!*value)
        return;
    const int length = snprintf(answer + answered, sizeof answer - answered, "%s=%s\n", key, value);
    if (length > 0 && (size_t)length < sizeof answer - answered)
        answered += (size_t)length;
}

// Open the node, if it is that device's, or a file.
static int open_memory(const char *node, const struct device *device)
{
    const int fd = open(node, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0)
        return -1; // ENXIO: the device is disabled
    if (fstat(fd, &status) == 0) {
        char number[sizeof device->number];
        snprintf(number, sizeof number, "%u:%u", major(status.st_rdev), minor(status.st_rdev));
        if (S_ISREG(status.st_mode) || (S_ISCHR(status.st_mode) && !strcmp(number, device->number)))
            return fd;
    }
    close(fd);
    return -1;
}

// Copy the superblock at `place` out; false where it cannot be mapped or faults: poison, an unplugged device.
static bool copy_superblock(int fd, const struct device *device, uint64_t place, uint8_t *ret)
{
    // devdax maps whole pages of its own size only, and a bad line takes out one of them.
    const uint64_t window = device->align > SUPERBLOCK_BYTES ? device->align : SUPERBLOCK_BYTES;
    const uint64_t begin = place & ~(window - 1), usable = device->size / device->align * device->align;
    if (begin > usable || window > usable - begin || place - begin > window - SUPERBLOCK_BYTES)
        return false;
    uint8_t *memory = mmap(NULL, window, PROT_READ, MAP_SHARED, fd, (off_t)begin);
    if (memory == MAP_FAILED)
        return false;
    const uint8_t *superblock = memory + (place - begin);
    volatile bool whole = false;
    if (!sigsetjmp(unreadable, 1)) {
        guarded = true;
        // Another host may have written it since this one cached it.
        ed_invalidate(superblock, SUPERBLOCK_BYTES);
        for (int i = 0; i < SUPERBLOCK_BYTES; i++)
            ret[i] = ((const volatile uint8_t *)superblock)[i];
        whole = true;
    }
    guarded = false;
    munmap(memory, window);
    return whole;
}

static bool find_pool(const char *node, const struct device *device, struct pool *ret)
{
    const int fd = open_memory(node, device);
    if (fd < 0)
        return false;
    static uint8_t copy[SUPERBLOCK_BYTES];
    const uint64_t usable = device->size / device->align * device->align;
    uint64_t places[MAX_COPIES];
    const int count = superblock_places(usable, places);
    bool found = false;
    for (int i = 0; i < count && !found; i++)
        found = copy_superblock(fd, device, places[i], copy) && read_superblock(copy, usable, ret);
    close(fd);
    return found;
}

int main(int count, char **arguments)
{
    prepare();
    const char *sysfs = "/sys";
    if (count == 4 && !strcmp(arguments[1], "--sysfs")) {
        sysfs = arguments[2];
        arguments += 2;
        count -= 2;
    }
    if (count != 2)
        return 0;
    const char *node = arguments[1], *slash = strrchr(node, '/');
    static struct device device;
    static struct identity identity;
    static struct pool pool;
    if (!find_device(sysfs, slash ? slash + 1 : node, &device))
        return 0;
    identify(sysfs, &device, &identity);
    add("ENGRAMDAX_SERIAL", identity.serials);
    add("ENGRAMDAX_CXL_ID", identity.place);
    add("ENGRAMDAX_NAMESPACE_UUID", identity.namespace_uuid);
    if (find_pool(node, &device, &pool)) {
        add("ENGRAMDAX_POOL_UUID", pool.uuid);
        add("ENGRAMDAX_POOL_NAME", pool.name);
    }
    alarm(0);
    // Less than a pipe takes at once: all of it or, where nobody listens, nothing.
    const ssize_t written = write(STDOUT_FILENO, answer, answered);
    (void)written;
    return 0;
}
