"""Where the code of a user awaits, and which line of it runs: no place in a library counts."""

import dis
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, Protocol

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

TOOLS = (3, 4)
"""The numbers of tools of `sys.monitoring` that Python reserves for no kind of tool."""

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


class Watch(Protocol):
    """Watches the awaits of the user's code while it is entered, again and again."""

    def __enter__(self) -> object:
        """Begin."""

    def __exit__(self, *error: object) -> None:
        """End."""


OnAwait = Callable[[When, FrameType], None]
"""Is called right before and right after each await."""


def watch_awaits(on_await: OnAwait) -> Watch:
    """Return what calls a function at each await of the user's code.

    Python 3.11 has no `sys.monitoring`. Later ones leave out instructions where a trace function
    asks for them when a function begins.
    """
    return MonitoringWatch(on_await) if hasattr(sys, "monitoring") else TraceWatch(on_await)


class TraceWatch:
    """Watches awaits in the thread that enters it."""

    def __init__(self, on_await: OnAwait) -> None:
        self._on_await = on_await

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Watch each function of the user's that awaits something."""
        awaits = awaits_of(frame.f_code)
        if not awaits:
            return None

        def watch(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode" and (when := awaits.get(frame.f_lasti)) is not None:
                self._on_await(when, frame)
            return watch

        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return watch


class MonitoringWatch:
    """Watches awaits in all threads of the process.

    Raises:
        RuntimeError: debuggers and profilers use all that Python has for such tools.
    """

    def __init__(self, on_await: OnAwait) -> None:
        self._on_await = on_await
        self._is_entered = False
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        tools = [tool for tool in TOOLS if self._monitoring.get_tool(tool) is None]
        if not tools:
            raise RuntimeError(
                "a crash test needs one of the tools 3 and 4 of sys.monitoring, and others use both"
            )
        self._tool = tools[0]
        self._events = self._monitoring.events
        self._monitoring.use_tool_id(self._tool, "bide crash test")
        self._monitoring.register_callback(self._tool, self._events.PY_START, self._begin)
        self._monitoring.register_callback(self._tool, self._events.INSTRUCTION, self._step)

    def __enter__(self) -> None:
        self._is_entered = True
        self._monitoring.set_events(self._tool, self._events.PY_START)

    def __exit__(self, *error: object) -> None:
        self._is_entered = False
        self._monitoring.set_events(self._tool, self._events.NO_EVENTS)

    def _begin(self, code: CodeType, offset: int) -> Any:
        """Watch the instructions of a function that begins, if it awaits something."""
        if not awaits_of(code):
            return self._monitoring.DISABLE
        self._monitoring.set_local_events(self._tool, code, self._events.INSTRUCTION)
        return None

    def _step(self, code: CodeType, offset: int) -> Any:
        """Look at the instruction that is executed next."""
        when = awaits_of(code).get(offset)
        if when is None:
            return self._monitoring.DISABLE
        if self._is_entered:
            self._on_await(when, sys._getframe(1))
        return None


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
