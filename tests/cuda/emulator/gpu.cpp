// SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <link.h>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "chance.h"
#include "failure.h"
#include "fiber.h"
#include "happened.h"
#include "memory.h"

namespace
{
const uint32_t BARRIERS = 16, UNIT = 16; // bytes of a copy
const uint32_t TIRED = 16; // times as long as it should a thread sleeps at most: who looks again soon takes time here
const uint64_t HANGS_NS = 2'000'000;
const uint32_t STACK = 32 << 10;
const int JUNK = 0x5A;

struct Warp {
    uint32_t threads, arrived;
    uint64_t turn; // that they meet in
    const char *what;
    uint64_t given[2][WARP_THREADS]; // who comes late to see what was given finds it, though others meet again
};

struct Barrier {
    uint32_t wanted, arrived;
    uint64_t turn;
};

struct Copy {
    void *to;
    const void *from;
};

struct Thread {
    Thread(uint8_t *stack, uint32_t bytes, void (*body)()) : fiber(stack, bytes, body)
    {
    }

    Fiber fiber;
    uint32_t number = 0;
    bool done = true;
    const uint64_t *gate = nullptr; // where it waits, while the gate has the value `shut`
    uint64_t shut = 0;
    uint64_t asleep_until = 0;
    const char *waits_for = nullptr;
    std::vector<Copy> copies;

    bool waits() const
    {
        return gate && *gate == shut;
    }
};

// Where the thread_local variables of this program are, which device.h makes of a block's shared ones.
struct Statics {
    uint8_t *at = nullptr;
    size_t bytes = 0;
};

Statics find_statics()
{
    Statics found;
    const auto look = [](dl_phdr_info *info, size_t, void *ret) { // this program is the first that is shown
        for (int i = 0; i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_TLS)
                *(Statics *)ret = {(uint8_t *)info->dlpi_tls_data, info->dlpi_phdr[i].p_memsz};
        return 1;
    };
    dl_iterate_phdr(look, &found);
    return found;
}
} // namespace

struct Launch {
    const Kernel *kernel;
    std::function<void()> call;
    uint32_t grid, threads, shared_bytes;
    bool early;
    std::shared_ptr<Launch> before; // NULL: it is done
    std::vector<uint32_t> waiting;  // numbers of the blocks that have not begun
    uint32_t let_begin = 0;         // blocks that let the next launch begin, or are done
    uint32_t done_blocks = 0;
    uint64_t done = 0;

    // Whether its next block may begin.
    bool may_begin() const
    {
        return !waiting.empty() && (!before || before->done || (early && before->let_begin == before->grid));
    }
};

struct Block {
    std::vector<Thread> threads;
    Warp warps[MOST_THREADS / WARP_THREADS];
    Barrier barriers[BARRIERS];
    std::shared_ptr<Launch> launch;
    uint32_t number = 0, left = 0; // threads that are not done
    bool lets_begin = false;
    std::unique_ptr<Memory> memory;
    uint8_t *shared = nullptr;
    std::vector<uint8_t> statics; // while other blocks run

    void begin(const std::shared_ptr<Launch> &of);
};

// Its shared memory is full of junk, as other blocks leave it.
void Block::begin(const std::shared_ptr<Launch> &of)
{
    launch = of;
    number = launch->waiting.back();
    launch->waiting.pop_back();
    left = launch->threads;
    lets_begin = false;
    memory = std::make_unique<Memory>();
    shared = nullptr;
    if (launch->shared_bytes) {
        shared = memory->give<uint8_t>("shared memory", launch->shared_bytes, UNIT);
        memory->changes(shared);
    }
    statics.assign(find_statics().bytes, JUNK);
    std::fill(std::begin(warps), std::end(warps), Warp{});
    std::fill(std::begin(barriers), std::end(barriers), Barrier{});
    for (uint32_t t = 0; t < left; t++) {
        Thread &thread = threads[t];
        thread.number = t;
        thread.done = false;
        thread.gate = nullptr;
        thread.asleep_until = 0;
        thread.copies.clear();
        warps[t / WARP_THREADS].threads++;
    }
}

static Block *block;
static Thread *self;

// What a fiber does: a thread of one block after the other.
static void run_threads()
{
    for (;;) {
        block->launch->call();
        self->done = true;
        self->fiber.leave();
    }
}

Gpu::Gpu()
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = page + (STACK + page - 1) / page * page;
    const size_t whole = MOST_BLOCKS * MOST_THREADS * room;
    void *map = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        fail("no memory for stacks");
    uint8_t *next = (uint8_t *)map;
    for (uint32_t b = 0; b < MOST_BLOCKS; b++) {
        blocks.push_back(std::make_unique<Block>());
        for (uint32_t t = 0; t < MOST_THREADS; t++) {
            mprotect(next, page, PROT_NONE);
            // Stacks that began at equal places of their pages would fight for the same lines of the cache.
            blocks[b]->threads.emplace_back(next + page, STACK - t % 64 * 64, run_threads);
            next += room;
        }
    }
}

Gpu::~Gpu() = default;

void Gpu::begin(uint32_t most, uint32_t shared_bytes, uint32_t longest_sleep_ns)
{
    if (!idle())
        fail("the trial before left launches");
    most_running = most;
    most_shared = shared_bytes;
    sleep_ns = longest_sleep_ns;
    clock = 1000;
    progress();
}

void Gpu::launch(uint64_t stream, const Kernel *kernel, uint32_t grid, uint32_t threads, uint32_t shared_bytes,
                 bool early, void **parameters)
{
    if (grid == 0 || threads == 0 || threads > MOST_THREADS)
        fail("%s is launched with %u blocks of %u threads", kernel->name, grid, threads);
    if (shared_bytes > most_shared)
        fail("%s is launched with %u bytes of shared memory; there are %u", kernel->name, shared_bytes, most_shared);
    auto made = std::make_shared<Launch>();
    made->kernel = kernel;
    made->call = kernel->call(parameters);
    made->grid = grid;
    made->threads = threads;
    made->shared_bytes = shared_bytes;
    made->early = early;
    made->waiting.resize(grid);
    std::iota(made->waiting.begin(), made->waiting.end(), 0);
    chance.shuffle(made->waiting);
    auto &queue = streams[stream];
    if (!queue.empty())
        made->before = queue.back();
    queue.push_back(made);
    happened[std::string("launches of ") + kernel->name]++;
    happened["launches with shared memory"] += shared_bytes > 0;
    progress();
}

void Gpu::start_blocks()
{
    while (running.size() < most_running) {
        std::vector<std::shared_ptr<Launch>> able;
        for (const auto &[stream, queue] : streams)
            std::copy_if(queue.begin(), queue.end(), std::back_inserter(able),
                         [](const auto &launch) { return launch->may_begin(); });
        if (able.empty() || chance.one_in(4))
            return;
        const auto &launch = chance.of(able);
        happened["blocks that begin while the launch before runs"] += launch->before && !launch->before->done;
        happened["blocks that run beside others"] += !running.empty();
        const auto free = std::find_if(blocks.begin(), blocks.end(), [](const auto &b) { return !b->launch; });
        (*free)->begin(launch);
        running.push_back(free->get());
        progress();
    }
}

// One turn of each thread that can go on, but for some warps; false if there is none.
bool Gpu::pass(Block &b)
{
    uint32_t order[MOST_THREADS / WARP_THREADS];
    std::iota(std::begin(order), std::end(order), 0);
    chance.shuffle(order);
    bool able = false;
    for (const uint32_t w : order) {
        const bool skipped = chance.one_in(8);
        const uint32_t first = chance.below(WARP_THREADS), threads = b.warps[w].threads;
        for (uint32_t i = 0; i < threads; i++) {
            Thread &thread = b.threads[w * WARP_THREADS + (first + i) % threads];
            if (thread.done || thread.waits())
                continue;
            able = true;
            if (skipped)
                break;
            if (gpu.clock < thread.asleep_until)
                continue;
            self = &thread;
            thread.fiber.enter();
            if (thread.done) {
                b.left--;
                progress();
            }
        }
    }
    return able;
}

// A block that cannot go on by itself, unless the launch before ends.
static void check_stuck(const Block &b)
{
    std::string where;
    for (uint32_t t = 0; t < b.launch->threads; t++) {
        const Thread &thread = b.threads[t];
        if (thread.done)
            continue;
        if (b.launch->before && thread.gate == &b.launch->before->done)
            return;
        if (t == 0 || b.threads[t - 1].waits_for != thread.waits_for)
            where += " thread " + std::to_string(t) + " and those after it at " + thread.waits_for + ",";
    }
    fail("block %u of %s waits for ever:%s others have ended", b.number, b.launch->kernel->name, where.c_str());
}

void Gpu::go_on(Block &b)
{
    const Statics statics = find_statics();
    memcpy(statics.at, b.statics.data(), statics.bytes);
    block = &b;
    for (uint32_t passes = 1 + chance.below(4); passes && b.left; passes--)
        if (!pass(b) && b.left) {
            check_stuck(b);
            break;
        }
    block = nullptr;
    self = nullptr;
    memcpy(b.statics.data(), statics.at, statics.bytes);
}

void Gpu::retire(Block &b)
{
    Launch &launch = *b.launch;
    launch.let_begin += !b.lets_begin;
    if (++launch.done_blocks == launch.grid)
        launch.done = 1;
    b.memory.reset();
    b.launch.reset();
    running.erase(std::find(running.begin(), running.end(), &b));
    for (auto stream = streams.begin(); stream != streams.end();) {
        auto &queue = stream->second;
        while (!queue.empty() && queue.front()->done) {
            queue.pop_front();
            if (!queue.empty())
                queue.front()->before.reset();
        }
        stream = queue.empty() ? streams.erase(stream) : std::next(stream);
    }
}

void Gpu::step()
{
    start_blocks();
    if (!running.empty()) {
        Block &chosen = *chance.of(running);
        go_on(chosen);
        if (chosen.left == 0)
            retire(chosen);
    }
    clock += chance.below(50);
    if (!idle() && clock - last_progress > HANGS_NS)
        fail("the GPU hangs: nothing was done for %llu ms", (unsigned long long)HANGS_NS / 1'000'000);
}

Place place()
{
    return {self->number, block->number, block->launch->threads, block->launch->grid};
}

void pause_thread()
{
    self->fiber.leave();
}

void perhaps_pause()
{
    if (chance.one_in(16))
        pause_thread();
}

void sleep_for(uint32_t ns)
{
    self->asleep_until = gpu.clock + chance.below(TIRED * ns);
    do
        pause_thread();
    while (gpu.clock < self->asleep_until);
}

void perhaps_sleep()
{
    if (gpu.sleep_ns && chance.one_in(6))
        sleep_for(gpu.sleep_ns / TIRED);
    else
        perhaps_pause();
}

static void wait_while(const uint64_t *gate, uint64_t shut, const char *waits_for)
{
    self->gate = gate;
    self->shut = shut;
    self->waits_for = waits_for;
    while (*gate == shut)
        pause_thread();
    self->gate = nullptr;
}

const uint64_t *meet_warp(const char *what, uint64_t value)
{
    Warp &warp = block->warps[self->number / WARP_THREADS];
    if (warp.arrived == 0)
        warp.what = what;
    else if (strcmp(warp.what, what) != 0)
        fail("thread %u of %s is at %s, others of its warp at %s", self->number, block->launch->kernel->name, what,
             warp.what);
    const uint64_t turn = warp.turn;
    uint64_t *const given = warp.given[turn % 2];
    given[self->number % WARP_THREADS] = value;
    if (++warp.arrived == warp.threads) {
        warp.arrived = 0;
        warp.turn++;
    } else {
        wait_while(&warp.turn, turn, what);
    }
    return given;
}

void meet_block(uint32_t number, uint32_t threads)
{
    static const char *const names[] = {"barrier 0", "barrier 1"};
    Barrier &barrier = block->barriers[number];
    if (barrier.arrived == 0)
        barrier.wanted = threads;
    else if (barrier.wanted != threads)
        fail("%u and %u threads of %s are to meet at one barrier", barrier.wanted, threads,
             block->launch->kernel->name);
    const uint64_t turn = barrier.turn;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        barrier.turn++;
    } else {
        wait_while(&barrier.turn, turn, names[number]);
    }
}

void let_next_launch_begin()
{
    if (!block->lets_begin) {
        block->lets_begin = true;
        block->launch->let_begin++;
        sleep_for(100); // as long as it takes the other one to come
    }
}

void wait_for_last_launch()
{
    const std::shared_ptr<Launch> before = block->launch->before;
    if (before)
        wait_while(&before->done, 0, "the end of the launch before");
}

uint8_t *shared_memory()
{
    return block->shared;
}

void begin_copy(void *to, const void *from)
{
    if ((uintptr_t)to % UNIT || (uintptr_t)from % UNIT)
        fail("a copy to shared memory is not aligned");
    uint8_t *const end = block->shared + block->launch->shared_bytes;
    if ((uint8_t *)to < block->shared || (uint8_t *)to + UNIT > end)
        fail("a copy goes beyond the shared memory of %u bytes", block->launch->shared_bytes);
    if (chance.one_in(4))
        memcpy(to, from, UNIT);
    else
        self->copies.push_back({to, from});
}

void end_copies()
{
    perhaps_pause();
    for (const Copy &copy : self->copies)
        memcpy(copy.to, copy.from, UNIT);
    self->copies.clear();
}
