// SPDX-License-Identifier: Apache-2.0
// A GPU on one thread of a CPU: streams of launches, whose blocks run side by side. Each thread of a block is a fiber,
// and goes on until it meets others, looks at memory that others write, sleeps, or is interrupted by chance; which one
// goes on then is left to chance, too.
//
// What a thread stores is seen by all at once, in the order of its program. So this finds threads that do not wait for
// each other where they have to, whatever the order is in which they come; a fence that is missing it cannot find.
#ifndef EMULATOR_GPU_H
#define EMULATOR_GPU_H

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

static constexpr uint32_t WARP_THREADS = 32, MOST_THREADS = 1024;

struct Kernel {
    const char *name;
    std::function<void()> (*call)(void **parameters); // gives the call of a thread; parameters are copied
};

struct Block;
struct Launch;

class Gpu
{
  public:
    Gpu();
    ~Gpu();

    // Begin a trial, in which at most so many blocks are on the GPU at once, each with so much shared memory at most,
    // and threads sleep for up to `sleep_ns` before some of their atomic operations (0: none does).
    void begin(uint32_t blocks, uint32_t shared_bytes, uint32_t sleep_ns);

    // Put a launch on a stream. `early`: its blocks may begin while the launch before runs, once that lets them.
    void launch(uint64_t stream, const Kernel *kernel, uint32_t grid, uint32_t threads, uint32_t shared_bytes,
                bool early, void **parameters);

    // Let some threads go on.
    void step();

    // Whether all that was launched is done.
    bool idle() const
    {
        return streams.empty();
    }

    // Something was done; where nothing is for long, the GPU hangs.
    void progress()
    {
        last_progress = clock;
    }

    uint64_t clock = 0; // ns
    uint32_t sleep_ns = 0;

    static constexpr uint32_t MOST_BLOCKS = 4;

  private:
    void start_blocks();
    void go_on(Block &block);
    bool pass(Block &block);
    void retire(Block &block);

    std::map<uint64_t, std::deque<std::shared_ptr<Launch>>> streams;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<Block *> running;
    uint32_t most_running = 1, most_shared = 0;
    uint64_t last_progress = 0;
};

extern Gpu gpu;

// For a thread of the GPU, which the functions below are called by.

struct Place {
    uint32_t thread, block, threads, blocks;
};
Place place();

// Let others go on: always, perhaps, or perhaps for long.
void pause_thread();
void perhaps_pause();
void perhaps_sleep();

// Sleep, about so long.
void sleep_for(uint32_t ns);

// Meet the others of the warp; gives what each of them gave. `what` they meet for has to be the same for all.
const uint64_t *meet_warp(const char *what, uint64_t value);

// Meet so many threads of the block at one of its barriers.
void meet_block(uint32_t barrier, uint32_t threads);

// Let the launch after this one begin; wait for the one before.
void let_next_launch_begin();
void wait_for_last_launch();

// The shared memory of the launch, of the block that runs.
uint8_t *shared_memory();

// Begin to copy 16 bytes; they are there once the thread waited for them, perhaps before.
void begin_copy(void *to, const void *from);
void end_copies();

#endif
