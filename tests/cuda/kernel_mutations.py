# SPDX-License-Identifier: Apache-2.0
"""Single changes to kernels.cu, each of which random trials on the emulated GPU must catch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """What it leaves out or swaps."""

    what: str
    old: str
    new: str
    kind: str | None = None
    """The kind of trial that has the situation in which it matters, where the others hardly do."""

    def source(self, text: str) -> str:
        """Give the mutated text; what is replaced stands there once."""
        assert text.count(self.old) == 1, f"{self.what}: found {text.count(self.old)} times in kernels.cu"
        return text.replace(self.old, self.new)


MEET = "        meet(meeting);\n"
CLEAR = "        if (threadIdx.x < CHUNKS_AT_ONCE)\n            ready[threadIdx.x] = WAITING;\n"
LAST_BLOCK = " != gridDim.x - 1)\n"
LATE = "if (!from && row && !e.from && lane == 0)\n        *(volatile u32 *)m.failed = 1;"

MUTATIONS = (
    # Warps of a block that copies chunks.
    Mutation("words of chunks cleared while others look at them", MEET + CLEAR, CLEAR, "shredded"),
    Mutation("words of chunks looked at before they are cleared", CLEAR + MEET, CLEAR),
    Mutation("a copier that copies direct rows, too", "others = MIX_WARPS - 1 - m", "others = MIX_WARPS - m"),
    Mutation("rooms of warps that overlap", "(warp - 1) * p.row_bytes", "(warp - 1) * (p.row_bytes - 1)"),
    Mutation("a step that leaves out a parcel", "x += m.copiers", "x += m.copiers + 1"),
    Mutation(
        "a step that leaves out a chunk", "m.staged_blocks * CHUNKS_AT", "(m.staged_blocks + 1) * CHUNKS_AT", "shredded"
    ),
    # When a chunk is there.
    Mutation("a chunk taken though it is late", "found >= THERE ? from : nullptr", "from"),
    Mutation("a chunk taken by the flag of a round before", "(u32)flag == sequence", "(u32)flag != 0"),
    Mutation("a chunk looked for at its number", "place = found - THERE;", "place = chunk;"),
    Mutation(
        "a chunk taken before anybody looked",
        "while ((found = load_acquire_block(ready + q)) == WAITING)\n                __nanosleep(20);",
        "found = load_acquire_block(ready + q) + THERE;",
    ),
    Mutation("a chunk waited for without a deadline", "clock_ns() - begin <= m.deadline_ns", "clock_ns() > begin"),
    Mutation("staged rows read as if they were still", "emit<Form, Fresh>", "emit<Form, Still>"),
    # Shared memory.
    Mutation("a parcel read before it is there", "    wait_for_brought();\n", ""),
    Mutation("the last bytes of a parcel not brought", "p.row_bytes + sizeof(uint4) - 1)", "p.row_bytes)"),
    Mutation("room used before all have read it", "    __syncwarp(); // before the room is used again\n", ""),
    # Lists and the mailbox.
    Mutation(
        "a message before all ids are there",
        "    __syncthreads();\n    if (p.hot.buckets) {\n        hits",
        "    if (p.hot.buckets) {\n        hits",
    ),
    Mutation(
        "a message before all blocks have posted", "posted, 1)" + LAST_BLOCK, "posted, 1) > gridDim.x)\n", "large"
    ),
    Mutation(
        "more rows staged than there is room for", "return staged < m.capacity ? staged : m.capacity;", "return staged;"
    ),
    Mutation("sequence number 0 after the last one", "last == ~0u ? 1 : last + 1", "last + 1"),
    Mutation("misses of the call before", "m.state->misses = m.state->near =", "m.state->near =", "large"),
    Mutation("blocks of the call before", "    m.state->posted = 0;\n", "", "large"),
    Mutation(
        "rows of further turns not posted",
        "    while (first - lane < total) {",
        "    if (first - lane < total) {",
        "large",
    ),
    Mutation(
        "rows of further turns not looked up",
        "        if (first - lane < total)\n            look_up(p, first, step, lane, known);\n",
        "",
        "large",
    ),
    Mutation("direct rows listed by their number among all", "m.local[n - slot]", "m.local[n]"),
    # The lane.
    Mutation("a lane given back before all blocks are done", "left, 1)" + LAST_BLOCK, "left, 1))\n"),
    Mutation(
        "a lane given back before all warps are done",
        "    __syncthreads();\n    if (threadIdx.x)\n        return;\n    __threadfence();\n",
        "    if (threadIdx.x)\n        return;\n",
    ),
    Mutation("a late round that nobody remembers", "    m.state->late = 1;\n", ""),
    Mutation(
        "a lane taken while the CPU works",
        "return load_acquire(m.finished) ==",
        "return load_acquire(m.finished) >= 0 *",
    ),
    Mutation(
        "one look at whether the CPU works",
        "    if (is_finished(m))\n        return true;\n",
        "    return true;\n",
        "contended",
    ),
    Mutation("a lane of another call used", "if (!m.host_rows && owner != m.token)", "if (!m.host_rows && !owner)"),
    Mutation("rows that could not be had, and nobody told", LATE, ""),
    Mutation("no wait for the kernel that takes the lane", "if (MANY)\n            wait_for_last();", "", "large"),
    Mutation("no wait for the kernel that posts", "    wait_for_last();\n    const volatile", "    const volatile"),
    # Rows that are near: hot ones and zeros.
    Mutation("near rows of the call before", "m.state->near = m.state->staged =", "m.state->staged =", "large"),
    Mutation("near rows not copied where they have no blocks", "if (gridDim.x == m.far_blocks)", "if (!gridDim.x)"),
    Mutation("near rows listed over those of the pool", "total - 1 - (near_number +", "(near_number +"),
    Mutation("a step that leaves out near rows", "first += warps * AT_ONCE", "first += (warps + 1) * AT_ONCE"),
    # Hot rows, heads and columns.
    Mutation(
        "a hot row not looked for in further buckets",
        "            if (matches || empty)\n                row = -1;",
        "            row = -1;",
    ),
    Mutation("a hot copy of another row of the warp", "first + (matches ?", "0 * first + (matches ?"),
    Mutation("ids counted within another head", "begin = p.head_begins[c];", "begin = p.head_begins[column];"),
    Mutation("ids of columns that are not read", "    if (column >= p.columns)\n        return -1;\n", ""),
)
