"""The action log: who did what, from where."""

import asyncio
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bide.dashboard.access import Access
from bide.dashboard.reading import SAMPLE_EVERY
from bide.dashboard.view import HtmlPage, PageRefused, PageView
from bide.server.logs import ActionLogLine

READ_BYTES = 1 << 20
"""How many bytes of the log are read for one page."""

MOST_ENTRIES = 100
"""How many entries a page shows."""


class Entries(NamedTuple):
    """A page of the log."""

    entries: list[ActionLogLine]
    """The newest first."""
    older: int | None
    """Where in the file the older ones end; `None`: there are none."""


def last_entries(
    path: str, wanted: Callable[[ActionLogLine], bool], before: int | None = None
) -> Entries:
    """Return the last entries of an action log. Lines that are no entries are left out.

    Args:
        path: the path of the file.
        wanted: tells which entries are returned.
        before: where in the file to begin reading backwards; `None`: at its end.

    Raises:
        OSError: the file cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        end = status.st_size if before is None else max(0, min(before, status.st_size))
        start = max(0, end - READ_BYTES)
        data = os.pread(file, end - start, start)
    finally:
        os.close(file)
    # The first line has begun before what was read, unless that is the whole file.
    first_line = data.find(b"\n") + 1 if start else 0
    entries = []
    line_start = end + 1
    for line in reversed(data[first_line:].split(b"\n")):
        line_start -= len(line) + 1
        if (entry := _entry(line)) is not None and wanted(entry):
            entries.append(entry)
            if len(entries) == MOST_ENTRIES:
                return Entries(entries, line_start or None)
    has_whole_line = start + first_line < end
    # A line that is longer than what is read at a time is skipped.
    older = start + first_line if has_whole_line else start
    return Entries(entries, older or None)


def _entry(line: bytes) -> ActionLogLine | None:
    """Return the entry of a line, `None` if it is none."""
    try:
        return msgspec.json.decode(line, type=ActionLogLine)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


FILTERS = ("who", "act", "queue", "target")


async def log(view: PageView) -> HtmlPage:
    """Return the page of the action log.

    Raises:
        PageRefused: the visitor may not see it.
    """
    access, request, path = view.access, view.request, view.log
    if not access.log:
        raise PageRefused(403, "no-access")
    filters = {name: request.get(name) for name in FILTERS}
    before = request.number("before")

    def wanted(entry: ActionLogLine) -> bool:
        if access.namespace is not None and entry.namespace != access.namespace:
            return False
        if not access.caller.of_all_queues and _own(access, entry) is None:
            return False
        return all(not text or getattr(entry, name) == text for name, text in filters.items())

    async def read() -> Entries:
        assert path is not None
        return await asyncio.to_thread(last_entries, path, wanted, before)

    page, problem = Entries([], None), ""
    if path is not None:
        # All on which `read` depends: visitors with other rights get results of their own.
        key = "log", access.caller, before, *filters.values()
        try:
            page = await view.store.recent.get(key, SAMPLE_EVERY, read)
        except OSError as error:
            problem = error.strerror or "not a regular file"
    return HtmlPage(
        "log.html",
        {
            "entries": page.entries,
            "older": page.older,
            "filters": filters,
            "problem": problem,
            "kept": path is not None,
            "live": before is None,
        },
    )


def _own(access: Access, entry: ActionLogLine) -> str | None:
    """Return the visitor's name of the queue of an entry, `None` if it is not for them."""
    if entry.queue is None:
        return None
    return access.caller.own(f"{entry.namespace}/{entry.queue}" if entry.namespace else entry.queue)
