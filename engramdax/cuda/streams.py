# SPDX-License-Identifier: Apache-2.0
"""Streams of CUDA: whichever a caller means, what it waits for, and whether it is being captured."""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engramdax.cuda.driver import bindings, checked
from engramdax.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.cuda.arrays import DeviceArray


def stream_handle(stream: Any, arrays: tuple[DeviceArray, ...]) -> int:
    """Give the CUstream that a call goes to; None is torch's current one when the arrays are torch's.

    Takes an integer handle, torch's Stream, or anything with `__cuda_stream__`. Never the legacy stream unless it
    is asked for by its number.
    """
    if stream is None:
        if not all(array.torch for array in arrays):
            raise ParameterError("stream is missing", remedy="say on which stream the arrays are used")
        return torch_stream(arrays[0].device or 0)
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "__cuda_stream__"):
        value = getattr(stream, name, None)
        value = value() if callable(value) else value
        if value is not None:
            return int(value[1] if isinstance(value, tuple) else value)
    raise ParameterError(f"stream is a {type(stream).__name__}", remedy="give a CUstream's number or a Stream object")


def is_captured(stream: int) -> bool:
    """Tell whether a stream is being captured into a graph."""
    return bool(int(checked(bindings().cuStreamIsCapturing(stream), "the stream does not tell whether it is captured")))


def torch_stream(device: int) -> int:
    """Give torch's current stream on a device."""
    torch = sys.modules["torch"]
    # What torch's own compiler calls; the public way makes an object of Python's for each call.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001
    return int(raw(device) if raw else torch.cuda.current_stream(device).cuda_stream)


def wait_for_producers(arrays: tuple[DeviceArray, ...], stream: int) -> None:
    """Let `stream` wait for the streams on which arrays were made, as their interface asks."""
    for array in arrays:
        if array.producer is not None and array.producer != stream:
            event = Event()
            event.record(array.producer)
            event.hold(stream)


class Event:
    """A point of a stream that others wait for. Freed with this object, which those who wait need no more."""

    def __init__(self) -> None:
        driver = self._driver = bindings()
        flag = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._event = checked(driver.cuEventCreate(flag), "cannot make an event")
        self._finalizer = weakref.finalize(self, driver.cuEventDestroy, self._event)
        self._finalizer.atexit = False  # as for DeviceMemory

    def record(self, stream: Any) -> None:
        """Let it stand for all that the stream has to do so far."""
        checked(self._driver.cuEventRecord(self._event, stream), "cannot record an event")

    def hold(self, stream: Any) -> None:
        """Let what follows on a stream wait until that is done."""
        checked(self._driver.cuStreamWaitEvent(stream, self._event, 0), "cannot wait for an event")


@contextmanager
def allowed_while_capturing() -> Iterator[None]:
    """Let this thread allocate while some stream is captured: what it allocates has no part in that."""
    driver = bindings()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(relaxed), "cannot allocate while capturing")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)
