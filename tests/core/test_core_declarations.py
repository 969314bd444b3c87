# SPDX-License-Identifier: Apache-2.0
"""What core.cdef says of the core's structs is what the compiler made of the headers."""

from __future__ import annotations

from engramdax._core import ffi


def test_every_struct_is_as_the_headers_have_it():
    _, structs, _ = ffi.list_types()
    problems = {}
    for name in structs:
        try:
            ffi.new(f"struct {name} *")  # cffi compares sizes and offsets when a struct is first used
        except TypeError as e:  # a handle, which only the core looks into
            problems[name] = str(e)
    assert len(structs) - len(problems) > 10
    assert all("unknown size" in problem for problem in problems.values())
