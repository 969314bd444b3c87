# SPDX-License-Identifier: Apache-2.0
"""Plain calls of the C core, which examine their arrays in C (c/plain.c): what is unusual they answer None to.

And pending gathers, which own their arrays until nobody writes into them. Their module lies in the library of `_core`,
beside cffi's, whose functions cannot look into Python's objects.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any, Final

from engramdax import _core

if TYPE_CHECKING:
    from collections.abc import Callable


def _load() -> Any:
    spec = spec_from_file_location("engramdax._plain", _core.__file__)
    if spec is None or spec.loader is None:
        raise ImportError(f"{_core.__file__} is no library")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module: Final = _load()

gather: Final[Callable[..., Any]] = _module.gather

start: Final[Callable[[int, int, object], Any]] = _module.start
done: Final[Callable[[Any], bool]] = _module.done
wait: Final[Callable[[Any], int | None]] = _module.wait

cuda_gather: Final[Callable[..., Any]] = _module.cuda_gather
form_key: Final[Callable[..., bytes | None]] = _module.form_key
