// SPDX-License-Identifier: Apache-2.0
// Media primitives: how bytes reach memory that other hosts read, and how this host forgets what it
// holds of it in its caches.
//
// CXL 2.0 memory shared by hosts is not coherent between them. A writer therefore stores whole 64-byte
// lines past its caches (non-temporal stores), so that a process killed at any instruction leaves no
// dirty line that the CPU could write back later; a fence orders one group of lines before the next.
// A reader invalidates before it reads.
//
// No function here fails or allocates. Addresses of the media are multiples of ED_LINE.
#ifndef ENGRAMDAX_MEDIA_H
#define ENGRAMDAX_MEDIA_H

#include <stdint.h>

enum { ED_LINE = 64 };

// Store `lines` whole lines from `source` (any alignment) to `target` (line aligned), past the caches.
// They are ordered before later stores only by ed_fence().
void ed_store_lines(uint8_t *target, const uint8_t *source, uint64_t lines);

// Every line stored by this thread before is on its way to the media, in front of every later one.
void ed_fence(void);

// Drop [address, address + length), widened to whole lines, from this CPU's caches and wait for it, so
// that the next load comes from the media. A dirty line would be written back, which is one more reason why stores
// go past the caches: there is none.
void ed_invalidate(const uint8_t *address, uint64_t length);

#endif
