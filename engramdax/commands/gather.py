# SPDX-License-Identifier: Apache-2.0
"""`gather`: rows of a table by their ids, from one .npy file into another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from engramdax.commands.output import JsonOption, PoolOption, print_json, print_line, printable, size_text
from engramdax.errors import ParameterError, SourceError
from engramdax.files import check_replaceable, replace_file
from engramdax.pool.pool import Pool
from engramdax.pool.records import resolve
from engramdax.trace.archive import opened_arrays

if TYPE_CHECKING:
    import numpy.typing as npt

OTHER: Final = "give another --out"


def gather(
    table: Annotated[str, typer.Argument(help="The table's name.")],
    *,
    ids: Annotated[Path, typer.Option("--ids", help="A .npy file of int32 or int64 row ids, any shape.")],
    out: Annotated[Path, typer.Option("--out", help="The .npy file to write: [*ids.shape, row].")],
    pool: PoolOption = None,
    per_head: Annotated[bool, typer.Option("--per-head", help="Ids count within each head.")] = False,
    invalid: Annotated[str, typer.Option("--invalid", metavar="raise|zero", help="What a bad id gives.")] = "raise",
    as_json: JsonOption = False,
) -> None:
    """Gather rows; an id of -1 gives a row of zeros."""
    if invalid not in ("raise", "zero"):
        raise ParameterError(f"--invalid {invalid} is unknown", remedy="say raise or zero")
    wanted = _read_ids(ids)
    path = resolve(pool)
    check_replaceable(out, pool=path, sources=[ids], remedy=OTHER)
    with Pool(path) as opened:
        rows = opened[table].gather(wanted, per_head=per_head, invalid=invalid)  # type: ignore[arg-type]
    replace_file(out, lambda file: np.save(file, rows), pool=path, remedy=OTHER)
    if as_json:
        print_json({"table": table, "ids": wanted.size, "shape": list(rows.shape), "dtype": str(rows.dtype)})
        return
    print_line(f"{wanted.size} rows of {table} ({size_text(rows.nbytes)}) are in {printable(str(out))}")


def _read_ids(path: Path) -> npt.NDArray[Any]:
    again = "write it with numpy.save"
    with opened_arrays(path, ".npy file of row ids", remedy=again) as value:
        if not isinstance(value, np.ndarray):
            raise SourceError(f"{path} is an archive of arrays", remedy=again)
        return np.ascontiguousarray(value) if value.ndim else value


COMMANDS = (gather,)
