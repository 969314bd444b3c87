# SPDX-License-Identifier: Apache-2.0
"""Registration of a table's extent with the driver, once for all tables, streams and devices of the process."""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from engramdax._core import ffi, lib
from engramdax.backing import Kind
from engramdax.cuda.driver import attribute, bindings, checked, error, use

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.format.geometry import Extent
    from engramdax.pool.attachment import Attachment

CHUNK_BYTES: Final = 64 << 30
"""At most this much in one call: the driver's page table takes 16 bytes per 4 KiB, and refuses 512 GiB."""

UNIT_BYTES: Final = 2 << 20

_registered: weakref.WeakValueDictionary[tuple[int, int], Registration] = weakref.WeakValueDictionary()
_mutex = threading.Lock()


class Registration:
    """Host memory that the GPU may read; unregistered when the last table on it is closed."""

    def __init__(
        self, attachment: Attachment, extent: Extent, row_stride: int, progress: Callable[[int], None] | None
    ) -> None:
        self._attachment = attachment  # the mapping must outlive the registration
        self.nbytes = extent.length
        self.device_pointer = 0
        address = attachment.mapping.address + extent.offset
        self._address: Any = ffi.cast("uint8_t *", address)
        self.chunk = chunk_bytes(row_stride)
        done: Any = ffi.new("uint64_t *")
        watcher = _Watcher(done, progress) if progress else None
        try:
            result = lib.ed_cuda_register(
                self._address, extent.length, self.chunk, not attachment.mapping.writable and _read_only(), done
            )
        finally:
            if watcher:
                watcher.stop()
        if result:
            raise error(
                result,
                f"the driver does not register {extent.length} bytes of {attachment.backing.path} "
                f"(it stopped after {done[0]})",
                remedy=_remedy(attachment.backing.kind),
            )
        pointer: Any = ffi.new("uint64_t *")
        for at in range(0, extent.length, self.chunk):
            result = lib.ed_cuda_device_pointer(self._address + at, pointer)
            if result or (at and pointer[0] != self.device_pointer + at):
                lib.ed_cuda_unregister(self._address, extent.length, self.chunk)
                raise error(result, "the GPU does not see registered memory in one piece")
            if at == 0:
                self.device_pointer = int(pointer[0])
        # Before the mapping goes: the finalizer holds what it needs of it.
        self._finalizer = weakref.finalize(self, _unregister, attachment, self._address, extent.length, self.chunk)


def register(
    attachment: Attachment,
    extent: Extent,
    row_stride: int,
    *,
    device: int,
    progress: Callable[[int], None] | None = None,
) -> Registration:
    """Give the process's registration of an extent, made now if there is none yet. Thread-safe.

    `progress` is called with the bytes registered so far, from another thread. CudaError says what refused.
    """
    use(device)
    key = (attachment.mapping.address, extent.offset)
    with _mutex:
        known = _registered.get(key)
        if known is None:
            known = Registration(attachment, extent, row_stride, progress)
            _registered[key] = known
        return known


def chunk_bytes(row_stride: int) -> int:
    """Give the largest chunk of whole pages and whole rows that one call may take."""
    whole = math.lcm(row_stride, UNIT_BYTES)
    return CHUNK_BYTES // whole * whole if whole <= CHUNK_BYTES else CHUNK_BYTES


def _unregister(attachment: Attachment, address: Any, length: int, chunk: int) -> None:
    del attachment  # kept until here, so that the memory is still mapped
    lib.ed_cuda_unregister(address, length, chunk)


def _read_only() -> bool:
    """Tell whether the device registers read-only mappings as such; without the flag it refuses them."""
    device = int(checked(bindings().cuCtxGetDevice(), "no device is current"))
    return bool(attribute(device, "READ_ONLY_HOST_REGISTER_SUPPORTED"))


def _remedy(kind: Kind) -> str:
    on_cpu = "path='staged' and the CPU gather work all the same"
    if kind is Kind.FILE:
        return f"files on a disk cannot be registered: put the pool on devdax, huge pages or tmpfs; {on_cpu}"
    return f"check ulimit -l and the driver's log (dmesg); {on_cpu}"


class _Watcher:
    """Tells progress while the call that registers is under way."""

    def __init__(self, done: Any, progress: Callable[[int], None]) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(done, progress), daemon=True)
        self._thread.start()

    def _watch(self, done: Any, progress: Callable[[int], None]) -> None:
        while not self._end.wait(0.2):
            progress(int(done[0]))
        progress(int(done[0]))

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
