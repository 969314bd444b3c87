# SPDX-License-Identifier: Apache-2.0
"""`gather`: rows of a table by their ids, from one .npy file into another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from engramdax.commands.output import JsonOption, PoolOption, print_json, print_line, size_text
from engramdax.errors import ParameterError, SourceError
from engramdax.files import replace_file
from engramdax.pool.pool import Pool
from engramdax.pool.records import resolve

if TYPE_CHECKING:
    import numpy.typing as npt


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
    with Pool(resolve(pool)) as opened:
        rows = opened[table].gather(wanted, per_head=per_head, invalid=invalid)  # type: ignore[arg-type]
    replace_file(out, lambda file: np.save(file, rows), remedy="give another --out")
    if as_json:
        print_json({"table": table, "ids": wanted.size, "shape": list(rows.shape), "dtype": str(rows.dtype)})
        return
    print_line(f"{wanted.size} rows of {table} ({size_text(rows.nbytes)}) are in {out}")


def _read_ids(path: Path) -> npt.NDArray[Any]:
    try:
        value = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist", remedy="give a .npy file of row ids") from None
    except (OSError, ValueError, EOFError, SyntaxError) as e:
        # numpy's own words about unknown content advise allow_pickle, which would run code from the file.
        what = "" if "pickle" in str(e) else f": {e}"
        raise SourceError(f"{path} is no .npy file of row ids{what}", remedy="write it with numpy.save") from None
    if not isinstance(value, np.ndarray):
        value.close()
        raise SourceError(f"{path} is an archive of arrays", remedy="write it with numpy.save")
    return np.ascontiguousarray(value) if value.ndim else value


COMMANDS = (gather,)
