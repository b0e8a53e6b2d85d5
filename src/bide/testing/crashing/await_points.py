"""Where the code of a user awaits, and which line of it runs: no place in a library counts."""

import dis
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

import bide

When = Literal["before", "after"]

LIBRARIES = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(bide.__file__).parent),
        "<frozen",
    }
)
"""How the file names of code begin that no user wrote."""

BEGIN_AWAIT = {"GET_AWAITABLE", "GET_ANEXT"}
"""The instructions right before something is awaited: by `await`, `async with`, `async for`."""


@cache
def is_library(filename: str) -> bool:
    """Tell whether a file is part of Python, of an installed package, or of bide."""
    return filename.startswith(LIBRARIES)


@cache
def awaits_of(code: CodeType) -> dict[int, When]:
    """Return the offsets of the instructions before and after each await of a function.

    Awaits are looked up in the bytecode, because one of a fake, which does not suspend, shows
    nowhere else.
    """
    points: dict[int, When] = {}
    is_open = False
    if is_library(code.co_filename):
        return points
    for instruction in dis.get_instructions(code):
        if instruction.opname in BEGIN_AWAIT:
            points[instruction.offset] = "before"
            is_open = True
        elif instruction.opname == "SEND" and is_open:  # it jumps there once there is a result
            points[instruction.argval] = "after"
            is_open = False
    return points


def place_of(frame: FrameType | None, bottom: CodeType) -> str:
    """Return the line of the user that runs, such as "shop.py:12"; empty if none does.

    Args:
        frame: the innermost one.
        bottom: the function at which the search ends: what called it is the test.
    """
    while frame is not None and frame.f_code is not bottom:
        if not is_library(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
