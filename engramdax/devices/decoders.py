# SPDX-License-Identifier: Apache-2.0
"""Root decoders: the windows of a host's address space that CXL regions go into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engramdax.errors import BackingError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.devices.tree import Memdev, Tree


def find_decoder(tree: Tree, memdevs: Sequence[Memdev], mode: str, size: int, wanted: str | None) -> str:
    """Give the root decoder with room for a region of these memdevs."""
    roots = [d for d in tree.decoders if d.kind == "root" and mode in d.capabilities]
    above = [_root_of(tree, m) for m in memdevs]
    fitting = [d for d in roots if all(port in (None, d.port) for port in above)]
    if wanted is not None:
        if wanted not in (d.name for d in fitting):
            raise ParameterError(
                f"{wanted} is no root decoder for {mode} memory above these memdevs",
                remedy=f"there is {', '.join(d.name for d in fitting) or 'none'}",
            )
        return wanted
    free = {d.name: (d.size or 0) - sum(r.size or 0 for r in tree.cxl_regions if r.decoder == d.name) for d in fitting}
    for name, room in free.items():
        if room >= size:
            return name
    raise BackingError(
        f"no root decoder has {size} bytes free for {mode} memory of {', '.join(m.name for m in memdevs)}"
        + (f": {', '.join(f'{name} {room}' for name, room in free.items())}" if free else ""),
        remedy="firmware opens such windows: look at its CXL settings, and at `cxl list -D`",
    )


def _root_of(tree: Tree, memdev: Memdev) -> str | None:
    """Give the name of the root port above a memdev."""
    ports = {p.name: p for p in tree.ports}
    port = next((p for p in tree.ports if p.uport == memdev.name), None)
    while port is not None and port.kind != "root":
        port = ports.get(port.parent or "")
    return port.name if port else None
