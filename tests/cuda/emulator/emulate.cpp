// SPDX-License-Identifier: Apache-2.0
// Random trials of the kernels, one after the other, up to the first that goes wrong; those of one kind alone, if one
// is named. Each follows from its seed. usage: emulate SEED COUNT [KIND]
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "chance.h"
#include "failure.h"
#include "gpu.h"
#include "happened.h"
#include "memory.h"
#include "setting.h"
#include "trial.h"

// What the sanitizer calls before it ends the program.
extern "C" void __sanitizer_set_death_callback(void (*callback)());

static const unsigned LONGEST_S = 100; // of a trial, which takes some milliseconds, but the machine may be busy

Chance chance;
Gpu gpu;
std::map<std::string, uint64_t> happened;

// Say which trial it was that the sanitizer has told of.
static void tell_trial()
{
    fprintf(stderr, "%s: see above\n", trying.c_str());
}

// A thread that never lets others go on.
static void tell_endless(int)
{
    fail("it does not end within %u s", LONGEST_S);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: emulate SEED COUNT [KIND]\n");
        return 2;
    }
    const uint64_t first = strtoull(argv[1], nullptr, 10), count = strtoull(argv[2], nullptr, 10);
    tell_faults();
    __sanitizer_set_death_callback(tell_trial);
    signal(SIGALRM, tell_endless);
    for (uint64_t seed = first, done = 0; done < count; seed++) {
        if (argc > 3 && strcmp(argv[3], KIND_NAMES[kind_of(seed)]) != 0)
            continue;
        alarm(LONGEST_S);
        run_trial(seed);
        done++;
    }
    for (const auto &[what, times] : happened)
        printf("%s\t%llu\n", what.c_str(), (unsigned long long)times);
    return 0;
}
