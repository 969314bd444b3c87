// SPDX-License-Identifier: Apache-2.0
// Parts of a file for CPUs that not everybody has; which part runs is decided at run time.
#ifndef ENGRAMDAX_TARGET_H
#define ENGRAMDAX_TARGET_H

// What is between these two is compiled for CPUs that have `isa`.
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(isa) PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define END_TARGET PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(isa) PRAGMA(GCC push_options) PRAGMA(GCC target(isa))
#define END_TARGET PRAGMA(GCC pop_options)
#endif

#endif
