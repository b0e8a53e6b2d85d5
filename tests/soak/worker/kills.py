"""Workers killed with -9, again and again, under load. Run it longer than the suite does:

python -m tests.soak.worker.kills --seconds 60
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import bide
from tests.system.worker.processes import children, wait_for, worker

__all__ = ["Result", "main", "run"]

LEASE = 1.0
WORN = 4
"""So many of its processes are killed before a worker is replaced itself."""

POISON = "poison"

SOURCE = """
import asyncio, os, signal, time
import bide

app = bide.App()
journal = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def note(what, delivery):
    now = time.time_ns() // 1_000_000
    line = f"{what} {delivery.id} {delivery.attempt} {delivery.claimed} {now} {os.getpid()}\\n"
    os.write(journal, line.encode())


@app.handler("async", lease="1s", concurrency=32)
async def on_loop(delivery: bide.Handling) -> None:
    note("begin", delivery)
    if delivery.id == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.02)
    note("end", delivery)


@app.handler("plain", lease="1s", concurrency=8)
def in_thread(delivery: bide.Handling) -> None:
    note("begin", delivery)
    time.sleep(0.02)
    note("end", delivery)
"""


class Handled(NamedTuple):
    """One handling, as its handler has written it down. Moments are Unix milliseconds."""

    id: str
    attempt: int
    claimed: int
    begun: int
    ended: int | None
    last_seen: int
    """When its process has written something down for the last time."""


def read(journal: Path) -> list[Handled]:
    begun: dict[tuple[str, str], list[int]] = {}
    ended: dict[tuple[str, str], int] = {}
    last_seen: dict[int, int] = {}
    for line in journal.read_text().splitlines():
        what, id, attempt, claimed, moment, pid = line.split(" ")
        last_seen[int(pid)] = int(moment)
        if what == "begin":
            assert (id, claimed) not in begun, "one claim was handled twice"
            begun[id, claimed] = [int(attempt), int(claimed), int(moment), int(pid)]
        else:
            ended[id, claimed] = int(moment)
    return [
        Handled(key[0], attempt, claimed, moment, ended.get(key), last_seen[pid])
        for key, (attempt, claimed, moment, pid) in begun.items()
    ]


class Result(NamedTuple):
    """What a run has shown."""

    confirmed: set[str]
    handled: list[Handled]
    kills: int
    loops: bide.Audit
    threads: bide.Audit
    letter: bide.Message | None

    @property
    def lost(self) -> set[str]:
        """Messages whose put was confirmed and that nobody has handled to the end."""
        return self.confirmed - {one.id for one in self.handled if one.ended is not None}

    @property
    def overlaps(self) -> list[tuple[Handled, Handled]]:
        """Two handlings of a message that neither a lapsed lease nor a dead process explains."""
        by_id: dict[str, list[Handled]] = {}
        for one in sorted(self.handled, key=lambda one: one.claimed):
            by_id.setdefault(one.id, []).append(one)
        return [
            (first, second)
            for attempts in by_id.values()
            for first, second in itertools.pairwise(attempts)
            if second.claimed < first.claimed + LEASE * 1000
            and (first.ended is None or second.begun < first.ended)
            and first.last_seen > second.claimed
        ]

    @property
    def ended_leases(self) -> int:
        """How many leases have lapsed, or were ended since their process was dead."""
        flows = [audit.counts.flow for audit in (self.loops, self.threads)]
        return sum(flow.lapsed + flow.retried for flow in flows)

    @property
    def again(self) -> int:
        """How many handlings were not the first of their message."""
        return len(self.handled) - len({one.id for one in self.handled})

    @property
    def poisoned(self) -> bool:
        """Whether the message that kills its process has ended among the dead letters."""
        letter = self.letter
        return letter is not None and (letter.state, letter.attempt) == ("dead", 3)

    @property
    def problems(self) -> list[str]:
        """What is wrong, if anything."""
        found = [f"{id} was confirmed and never handled" for id in sorted(self.lost)]
        found += [f"{first} and {second} overlap" for first, second in self.overlaps]
        found += [*self.loops.problems, *self.threads.problems]
        return found if self.poisoned else [*found, f"the poison is {self.letter}"]


@dataclass
class Member:
    """A worker, and how many of its processes were killed."""

    process: "subprocess.Popen[str]"
    lost: int = 0


class Crew:
    """Two workers of two processes each. One that has lost many is killed itself, and replaced.

    A supervisor lets a place rest whose processes die again and again; so that a process can be
    killed every second, those that have seen too much of it are replaced.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._workers = [Member(self._start()), Member(self._start())]
        self.kills = 0

    def kill(self, chance: random.Random) -> None:
        """Kill one of the processes, if any is there."""
        one = chance.choice(self._workers)
        if one.lost >= WORN:
            one.process.kill()
            one.process, one.lost = self._start(), 0
        elif alive := children(one.process):
            os.kill(chance.choice(alive), signal.SIGKILL)
            one.lost += 1
            self.kills += 1

    def _start(self) -> "subprocess.Popen[str]":
        options = ("--processes", "2", "--log-level", "error")
        return self._stack.enter_context(worker(self._folder, SOURCE, *options))


PATIENCE = 60.0  # seconds


def run(folder: Path, seconds: float, *, pause: float = 0.8, least: int = 0) -> Result:
    """Put and handle messages while workers are killed, then let the rest be handled.

    Args:
        folder: for the store, the journal and the log.
        seconds: for how long.
        pause: seconds from kill to kill.
        least: how many messages, for which a busy machine gets `PATIENCE` more.
    """
    url = f"sqlite:///{folder / 'bide.db'}"
    confirmed: set[str] = set()
    chance = random.Random(7)
    with (
        ExitStack() as stack,
        bide.Queue("async", url) as loops,
        bide.Queue("plain", url) as threads,
    ):
        crew = Crew(folder, stack)
        wait_for((folder / "journal").exists, folder)
        loops.put("x", id=POISON, attempts=3)
        end = time.monotonic() + seconds
        kill = time.monotonic() + pause
        numbers = itertools.count()
        while (now := time.monotonic()) < end or (now < end + PATIENCE and len(confirmed) <= least):
            for queue, kind in ((loops, "a"), (threads, "p")):
                ids = [f"{kind}{next(numbers)}" for _ in range(3)]
                queue.put_many(
                    [bide.NewMessage(body=id, id=id, delay=chance.random()) for id in ids]
                )
                confirmed.update(ids)
            if time.monotonic() > kill:
                crew.kill(chance)
                kill = time.monotonic() + pause
            time.sleep(0.01)
        wait_for(lambda: loops.counts().sizes.total == 1, folder)
        wait_for(lambda: threads.counts().sizes.total == 0, folder)
        letter, audits = loops.get(POISON), (loops.audit(), threads.audit())
    return Result(confirmed, read(folder / "journal"), crew.kills, *audits, letter)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill for as long as is asked for, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition(".")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args(arguments).seconds
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), seconds)
    ended = result.ended_leases
    print(
        f"{seconds:g} s, {result.kills} workers killed: {len(result.confirmed):,} messages "
        f"confirmed, {len(result.lost)} lost; {result.again:,} handlings were repeated, after "
        f"{ended:,} leases of the dead; {len(result.overlaps)} overlaps unexplained"
    )
    for problem in result.problems[:5]:
        print(problem)
    return 1 if result.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
