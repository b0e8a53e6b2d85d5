"""Tracebacks for a log that people read: each cause once in a while, frames of libraries folded."""

import re
from collections import OrderedDict

REMIND = 600.0
"""Seconds after which the traceback of a cause is shown again."""

MOST = 1_000
"""The number of causes that are remembered."""

_FRAME = re.compile(r'  File "(?P<file>.*)", line \d+, in ')
_LIBRARY = re.compile(r".*[/\\](?:site-packages|dist-packages|python\d\.\d+)[/\\]([^/\\.]+)")


class Tracebacks:
    """Tells which tracebacks to show: the first of each cause, and again after ten minutes.

    Errors have the same cause if they have the same type and were raised at the same place by the
    same calls, whatever their messages say.

    Example:
        >>> shown = Tracebacks()
        >>> reason = 'KeyError: 42\\nTraceback:\\n  File "shop.py", line 9, in pay'
        >>> shown.admit(reason, 0.0), shown.admit(reason, 1.0), shown.admit(reason, 601.0)
        (True, False, True)
    """

    def __init__(self) -> None:
        self._shown: OrderedDict[tuple[str, ...], float] = OrderedDict()

    def admit(self, reason: str, now: float) -> bool:
        """Tell whether to show the traceback of a failure; never if it has none.

        Args:
            reason: a line with the error, and its traceback below.
            now: in seconds.
        """
        first, *trace = reason.splitlines()
        frames = [line for line in trace if _FRAME.match(line)]
        if not frames:
            return False
        cause = (first.partition(":")[0], *frames)
        before = self._shown.get(cause)
        if before is not None and now < before + REMIND:
            return False
        self._shown[cause] = now
        self._shown.move_to_end(cause)
        if len(self._shown) > MOST:
            self._shown.popitem(last=False)
        return True


def folded(trace: str) -> str:
    """Return a traceback with one line for frames of libraries that follow each other.

    The innermost frame stays: it is where the error was raised.

    Example:
        >>> lib = '  File "/x/site-packages/orm/s.py", line 1, in f\\n    g()'
        >>> print(folded(f'Traceback:\\n{lib}\\n{lib}\\n{lib}\\nValueError'))
        Traceback:
          ... 2 frames in orm
          File "/x/site-packages/orm/s.py", line 1, in f
            g()
        ValueError
    """
    kept: list[str] = []
    run: list[list[str]] = []  # frames of libraries, each with its lines
    names: dict[str, None] = {}
    for line in [*trace.splitlines(), ""]:
        if _FRAME.match(line) and (library := _LIBRARY.match(line)) is not None:
            run.append([line])
            names[library[1]] = None
        elif run and line.startswith("    "):
            run[-1].append(line)
        else:
            if len(run) > 2:
                kept += [f"  ... {len(run) - 1} frames in {', '.join(names)}", *run[-1]]
            else:
                kept += [part for frame in run for part in frame]
            run, names = [], {}
            kept.append(line)
    return "\n".join(kept[:-1])
