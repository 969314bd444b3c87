// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <ucontext.h>

#include "failure.h"

// A context takes a call of the system to switch to, so it only brings a fiber onto its stack: from there on these
// jump.
void Fiber::enter()
{
    if (_setjmp(outside))
        return;
    if (!fresh)
        _longjmp(inside, 1);
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = stack;
    first.uc_stack.ss_size = bytes;
    first.uc_link = nullptr;
    makecontext(&first, fresh, 0);
    fresh = nullptr;
    setcontext(&first);
    fail("a fiber cannot begin");
}

void Fiber::leave()
{
    if (!_setjmp(inside))
        _longjmp(outside, 1);
}
