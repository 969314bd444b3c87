// SPDX-License-Identifier: Apache-2.0
// A thread of the emulated GPU: a stack of its own on the one thread that there is, left and entered again at will.
#ifndef EMULATOR_FIBER_H
#define EMULATOR_FIBER_H

#include <csetjmp>
#include <cstdint>

class Fiber
{
  public:
    // Its stack lies at `stack`. It calls `body` when it is entered for the first time, which must not return.
    Fiber(uint8_t *stack, uint32_t bytes, void (*body)()) : stack(stack), bytes(bytes), fresh(body)
    {
    }

    // Go on with it, until it leaves.
    void enter();

    // Go back to who entered it; by itself.
    void leave();

  private:
    uint8_t *stack;
    uint32_t bytes;
    void (*fresh)(); // NULL once it was entered
    jmp_buf inside, outside;
};

#endif
