// SPDX-License-Identifier: Apache-2.0
// How often what is rare happened, for those who want to see that it did.
#ifndef EMULATOR_HAPPENED_H
#define EMULATOR_HAPPENED_H

#include <cstdint>
#include <map>
#include <string>

extern std::map<std::string, uint64_t> happened;

#endif
