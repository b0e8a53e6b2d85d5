"""The processes that use the store: they are killed with -9 at random, and replaced."""

import multiprocessing
import random
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from bide.engines.registry import module_of, split_url
from bide.proving.plan import ProvingPlan, ProvingStopped, last_line
from bide.proving.workload import work
from bide.testing.history import Journal

GRACE_SECONDS = 15.0
"""Seconds that the processes may take for what they are at, when they are to end."""

AT_WORK_BYTES = 4_000
"""A process whose journal is larger has called the store some times."""


class CrewMember(NamedTuple):
    """One process."""

    name: str
    process: BaseProcess
    ending: Connection
    """Closed to let the process end."""
    consumes: bool
    """Whether it mostly claims; else it mostly puts."""


class ProvingCrew:
    """So many processes at a time; leaving the block kills those that are left.

    Args:
        plan: of the run.
        folder: where their journals are.
        journal: where to note who was killed.
        chance: says who is killed.
    """

    def __init__(
        self, plan: ProvingPlan, folder: Path, journal: Journal, chance: random.Random
    ) -> None:
        self.kills = 0
        """How many were killed."""
        self._plan = plan
        self._folder = folder
        self._journal = journal
        self._chance = chance
        self._started = 0
        self._members: list[CrewMember] = []
        # A process of its own forks the others: a fork takes less than the start of a program.
        self._context = multiprocessing.get_context("forkserver")
        engine = f"{module_of(split_url(plan.url).scheme)}.engine"
        self._context.set_forkserver_preload(["bide.proving.workload", engine])

    def start(self) -> None:
        """Start all processes."""
        for number in range(self._plan.processes):
            self._add(consumes=number % 2 == 1)

    def _add(self, *, consumes: bool) -> None:
        self._started += 1
        name = f"w{self._started}"
        plan, seed = self._plan, self._chance.randrange(1 << 32)
        theirs, ours = self._context.Pipe(duplex=False)
        with theirs:
            arguments = (
                plan.url,
                plan.queue,
                name,
                seed,
                self._folder,
                plan.pending,
                consumes,
                theirs,
            )
            process = self._context.Process(target=work, args=arguments, daemon=True)
            process.start()
        self._members.append(CrewMember(name, process, ours, consumes))

    def check(self) -> None:
        """Check that no process has ended by itself.

        Raises:
            ProvingStopped: one has; the error has the last line that it printed.
        """
        for member in self._members:
            if not member.process.is_alive():
                raise ProvingStopped(self._ending_of(member))

    def _ending_of(self, member: CrewMember) -> str:
        """Say how a process ended."""
        printed = last_line(self._folder / f"{member.name}.log")
        return f"{member.name} ended with exit code {member.process.exitcode}: {printed}"

    @property
    def has_started(self) -> bool:
        """Whether all processes have begun to work."""
        return all((self._folder / f"{member.name}.journal").exists() for member in self._members)

    def kill_one(self) -> bool:
        """Kill one process with -9, whatever it is at, and start another one in its place.

        Returns:
            False if none of them is at work yet.
        """
        busy = [member for member in self._members if self._is_at_work(member)]
        if not busy:
            return False
        victim = self._chance.choice(busy)
        self._members.remove(victim)
        victim.process.kill()
        victim.process.join()
        victim.ending.close()
        self._journal.did("kill", name=victim.name)
        self.kills += 1
        self._add(consumes=victim.consumes)
        return True

    def _is_at_work(self, member: CrewMember) -> bool:
        path = self._folder / f"{member.name}.journal"
        return path.exists() and path.stat().st_size > AT_WORK_BYTES

    def end(self) -> None:
        """Let all processes end what they are at.

        Raises:
            ProvingStopped: one did not end well.
        """
        for member in self._members:
            member.ending.close()
        for member in self._members:
            member.process.join(GRACE_SECONDS)
            if member.process.is_alive():
                # Such as one that waits for a store that does not answer: that is a kill, too.
                member.process.kill()
                member.process.join()
                self._journal.did("kill", name=member.name)
            elif member.process.exitcode:
                raise ProvingStopped(self._ending_of(member))
        self._members.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for member in self._members:
            member.process.kill()
            member.process.join()
            member.ending.close()
        self._members.clear()
