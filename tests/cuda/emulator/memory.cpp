// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "failure.h"

namespace
{
const size_t PAGE = (size_t)sysconf(_SC_PAGESIZE);

struct Piece {
    const char *name;
    uint8_t *map, *begin, *end, *map_end;
};

std::vector<Piece> pieces;

struct Range {
    uintptr_t begin, end;
};

std::vector<Range> changing;

void tell(int, siginfo_t *info, void *)
{
    const uint8_t *at = (const uint8_t *)info->si_addr;
    for (const Piece &piece : pieces) {
        if (at < piece.map || at >= piece.map_end)
            continue;
        if (at < piece.begin)
            fail("somebody touched what lies %zu bytes before %s", (size_t)(piece.begin - at), piece.name);
        if (at >= piece.end)
            fail("somebody touched what lies %zu bytes behind the end of %s", (size_t)(at - piece.end), piece.name);
        fail("somebody wrote byte %zu of %s, which is for reading", (size_t)(at - piece.begin), piece.name);
    }
    fail("somebody touched address %p, where there is nothing", (const void *)at);
}

Piece &piece_at(const void *begin)
{
    for (Piece &piece : pieces)
        if (piece.begin == begin)
            return piece;
    fail("there is no memory at %p", begin);
}
} // namespace

uint8_t *Memory::bytes(const char *name, size_t bytes, size_t align)
{
    const size_t inner = (bytes + PAGE - 1) / PAGE * PAGE, whole = inner + 2 * PAGE;
    void *map = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect((uint8_t *)map + PAGE, inner, PROT_READ | PROT_WRITE))
        fail("no memory for %s", name);
    uint8_t *const room = (uint8_t *)map + PAGE;
    memset(room, 0xA5, inner);
    uint8_t *const begin = (uint8_t *)((uintptr_t)(room + inner - bytes) / align * align);
    pieces.push_back({name, (uint8_t *)map, begin, begin + bytes, (uint8_t *)map + whole});
    mine.push_back(map);
    return begin;
}

Memory::~Memory()
{
    for (void *map : mine) {
        const auto piece = std::find_if(pieces.begin(), pieces.end(), [map](const Piece &p) { return p.map == map; });
        munmap(piece->map, (size_t)(piece->map_end - piece->map));
        const uintptr_t begin = (uintptr_t)piece->begin;
        const auto at_begin = [begin](const Range &range) { return range.begin == begin; };
        changing.erase(std::remove_if(changing.begin(), changing.end(), at_begin), changing.end());
        pieces.erase(piece);
    }
}

void Memory::seal(const void *begin)
{
    const Piece &piece = piece_at(begin);
    mprotect(piece.map + PAGE, (size_t)(piece.map_end - piece.map) - 2 * PAGE, PROT_READ);
}

void Memory::changes(const void *begin)
{
    const Piece &piece = piece_at(begin);
    changing.push_back({(uintptr_t)piece.begin, (uintptr_t)piece.end});
}

bool may_change(const void *at)
{
    const auto holds = [at](const Range &range) { return (uintptr_t)at >= range.begin && (uintptr_t)at < range.end; };
    return std::any_of(changing.begin(), changing.end(), holds);
}

void tell_faults()
{
    // The fiber that faults has little stack.
    static uint8_t stack[64 << 10];
    const stack_t other = {stack, 0, sizeof stack};
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = tell;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}
