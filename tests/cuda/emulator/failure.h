// SPDX-License-Identifier: Apache-2.0
// The end of the program, at the first thing that is wrong.
#ifndef EMULATOR_FAILURE_H
#define EMULATOR_FAILURE_H

#include <string>

// Put before the text of a failure: which trial it is, and what it tries.
extern std::string trying;

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
