"""What every program of a peer does: answer lines of JSON as a client, or run as a worker.

`python -m benchmarks.peers.programs.NAME client` reads a command from each line of standard input
and answers with a line; `... worker` runs the peer's own worker until it is killed. Handlers call
`note`. It needs the standard library alone, so that the interpreter of any peer runs it.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "BODY",
    "Call",
    "NotOffered",
    "Peer",
    "hold",
    "hold_async",
    "note",
    "run",
    "run_module",
    "setting_options",
    "settings",
    "store",
]

BODY = "x" * 200
"""What a message carries beside three numbers: 256 bytes together, as JSON."""

EACH = 50
"""Messages that are put one by one between two looks at the clock."""


class NotOffered(Exception):
    """The peer cannot do this."""


class Call(NamedTuple):
    """A message: its number, when it is due (Unix time), and how long its handler takes."""

    number: int
    due: float
    seconds: float = 0.0

    @property
    def moment(self) -> datetime:
        """When it is due, as an aware time."""
        return datetime.fromtimestamp(self.due, UTC)

    @property
    def arguments(self) -> tuple[int, float, float, str]:
        """What the handler is called with."""
        return (*self, BODY)


class Peer:
    """A client of a peer. What a subclass leaves out is not offered."""

    def prepare(self) -> None:
        """Make what the empty server needs before client and worker use it, such as tables."""

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put messages one by one, and return what cancels each."""
        raise NotImplementedError

    def put_list(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put messages with one call of the peer, and return what cancels each."""
        raise NotOffered("no call takes a list of messages with due times")

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Cancel messages one by one."""
        raise NotOffered("no call cancels a pending message")

    def work(self) -> None:
        """Run the worker of the peer, as its documentation says, in the foreground."""
        raise NotImplementedError


def store() -> str:
    """Return the URL of the server, or the path of a file."""
    return os.environ["PEER_STORE"]


def settings() -> dict[str, Any]:
    """Return the tuned settings of this run; none if the defaults of the peer are measured."""
    chosen: dict[str, Any] = json.loads(os.environ.get("PEER_SETTINGS", "{}"))
    return chosen


def setting_options() -> list[str]:
    """Return the tuned settings as options of a command: each name and its value."""
    return [text for name, value in settings().items() for text in (name, str(value))]


def note(number: int, due: float) -> None:
    """Note that a message was handled. One write appends a line, whichever process makes it."""
    line = f"{number} {due!r} {time.time()!r}\n"
    descriptor = _log()
    os.write(descriptor, line.encode())


def hold(seconds: float) -> None:
    """Take so long, if the message wants it, and note that a handler has started."""
    if seconds:
        _begun()
        time.sleep(seconds)


async def hold_async(seconds: float) -> None:
    """Do the same in an async handler."""
    if seconds:
        _begun()
        await asyncio.sleep(seconds)


def _begun() -> None:
    Path(os.environ["PEER_LOG"]).with_suffix(".begun").touch()


def _log() -> int:
    """Return the open log; each process opens it once."""
    process = os.getpid()
    if process not in _logs:
        _logs[process] = os.open(os.environ["PEER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return _logs[process]


_logs: dict[int, int] = {}


def run_module(*command: str) -> None:
    """Become the command line of a peer: `python -m COMMAND`."""
    os.execv(sys.executable, [sys.executable, "-m", *command])


def run(make: Callable[[], Peer]) -> None:
    """Be a client or a worker, as the first argument says."""
    if sys.argv[1] == "worker":
        make().work()
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peer prints is no answer
    peer = make()
    peer.prepare()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = _COMMANDS[command.pop("do")](peer, **command)
        except NotOffered as reason:
            answer = {"not_offered": str(reason)}
        except Exception as error:  # noqa: BLE001 - the cell of the table says it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _put(peer: Peer, seconds: float, size: int, delay: float, limit: int) -> dict[str, Any]:
    """Put for so many seconds, or until the limit: one by one, or in lists of a size."""
    count, begin = 0, time.perf_counter()
    put = peer.put_each if size == 1 else peer.put_list
    chunk = EACH if size == 1 else size
    used = 0.0
    while used < seconds and count < limit:
        due = time.time() + delay
        numbers = range(count, min(count + chunk, limit))
        put([Call(number, due) for number in numbers])
        count += len(numbers)
        used = time.perf_counter() - begin
    return {"count": count, "seconds": used}


def _put_at(
    peer: Peer, first: int, count: int, due: float, step: float = 0, seconds: float = 0
) -> dict[str, Any]:
    """Put messages that are due at one time, or one after the other; in lists if it has these."""
    calls = [Call(first + n, due + n * step, seconds) for n in range(count)]
    _put_fast(peer, calls)
    return {"ended": time.time()}


def _put_fast(peer: Peer, calls: Sequence[Call]) -> Sequence[Any]:
    keys: list[Any] = []
    try:
        for start in range(0, len(calls), 500):
            keys += peer.put_list(calls[start : start + 500])
    except NotOffered:
        keys += peer.put_each(calls)
    return keys


def _pace(peer: Peer, rate: float, count: int) -> dict[str, Any]:
    """Put messages at an even pace, each due in one to five seconds."""
    begin = time.time()
    for number in range(count):
        moment = begin + number / rate
        time.sleep(max(0.0, moment - time.time()))
        peer.put_each([Call(number, time.time() + 1 + number * 7919 % 4000 / 1000)])
    return {"ended": time.time()}


def _cancel(peer: Peer, seconds: float, count: int) -> dict[str, Any]:
    """Put messages that are due in an hour, and cancel them for so many seconds."""
    due = time.time() + 3600
    peer.cancel_each(_put_fast(peer, [Call(0, due)]))  # the first one opens and prepares
    keys = _put_fast(peer, [Call(number, due) for number in range(count)])
    done, begin, used = 0, time.perf_counter(), 0.0
    while used < seconds and done < len(keys):
        part = keys[done : done + EACH]
        peer.cancel_each(part)
        done += len(part)
        used = time.perf_counter() - begin
    return {"count": done, "seconds": used}


_COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "put": _put,
    "put_at": _put_at,
    "pace": _pace,
    "cancel": _cancel,
}
