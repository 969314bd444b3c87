# SPDX-License-Identifier: Apache-2.0
"""Files of numpy's that hold an array or an archive of arrays, and may be anything else."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from engramdax.errors import EngramdaxError, SourceError
from engramdax.ingest.naming import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt


@contextmanager
def opened_arrays(path: Path, what: str, *, remedy: str) -> Iterator[Any]:
    """Give what `numpy.load` finds: an array, or an open archive, whose arrays the body then reads.

    Raises SourceError that says "`path` is no `what`" for whatever else the file is, found there or in the body.
    """
    try:
        # Odd literals in a header and headers from Python 2 make numpy warn: neither is of interest here.
        with warnings.catch_warnings(action="ignore"), path.open("rb") as file:
            yield np.load(file, allow_pickle=False)
    except EngramdaxError:
        raise
    except Exception as e:  # noqa: BLE001 - numpy lets those of zipfile, zlib, ast and tokenize through
        raise unreadable(path, what, e, remedy=remedy) from None


def array_of(archive: Any, name: str) -> npt.NDArray[Any]:
    """Give an array of an open archive; TypeError for a member that is none, which numpy gives as bytes."""
    array = archive[name]
    if not isinstance(array, np.ndarray):
        raise TypeError(f"its {shown(name)} is no array")
    return array


def unreadable(path: Path, what: str, error: Exception, *, remedy: str) -> SourceError:
    """Give the error for a file that could not be read as `what`."""
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path} does not exist", remedy="check the path")
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    # numpy's own words about unknown content advise allow_pickle, which would run code from the file.
    return SourceError(f"{path} is no {what}{'' if 'pickle' in words else f': {shown(words)}'}", remedy=remedy)
