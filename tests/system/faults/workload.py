"""A crew: processes that put, claim and ack on one store, each with a journal, until they die."""

import multiprocessing
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

import bide
from bide.model.replies import Counts
from bide.testing.history import check, check_counts, journals_in
from tests.system.faults.worker import drain, work

__all__ = ["Crew"]

PATIENCE = 60.0


class Crew:
    """So many processes at work on one store; leaving the block kills those that are left.

    Args:
        url: of the store.
        folder: where their journals are.
        size: how many there are at a time.
        tolerant: whether the store may refuse what they ask of it now and then.
    """

    def __init__(self, url: str, folder: Path, size: int, *, tolerant: bool = False) -> None:
        self.chance = random.Random()
        self._url = url
        self._folder = folder
        self._tolerant = tolerant
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.system.faults.worker"])
        self._born = 0
        self._living: list[BaseProcess] = []
        for _ in range(size):
            self._bear()

    def _bear(self) -> None:
        self._born += 1
        arguments = (self._url, f"w{self._born}", self.chance.randrange(1 << 32), self._folder)
        process = self._context.Process(
            target=work, args=arguments, kwargs={"tolerant": self._tolerant}, daemon=True
        )
        process.start()
        self._living.append(process)

    def replace_one(self) -> None:
        """Kill one of them with -9, whatever it is at, and let another begin."""
        victim = self._living.pop(self.chance.randrange(len(self._living)))
        assert victim.is_alive(), f"a worker died by itself: exit code {victim.exitcode}"
        victim.kill()
        victim.join()
        self._bear()

    def until_at_work(self) -> None:
        """Wait until a hundred more messages are acked than now."""
        deadline = time.monotonic() + PATIENCE
        with bide.Queue("orders", self._url) as orders:
            before = orders.counts().flow.acked
            while orders.counts().flow.acked < before + 100:
                assert time.monotonic() < deadline, "nobody delivers any more"
                time.sleep(0.05)

    def dismiss(self) -> Counts:
        """Kill all, finish what they left behind, and hold their journals against the store.

        Returns:
            what the store counts at the end.
        """
        assert all(process.is_alive() for process in self._living), "somebody did not go on"
        self._end()
        drain(self._url, self._folder)
        with bide.Queue("orders", self._url) as orders:
            audit = orders.audit()
        journals = journals_in(self._folder)
        violations = [*check(journals).violations, *check_counts(journals, audit.counts)]
        assert violations == [], "\n".join(map(str, violations))
        assert audit, audit.problems
        return audit.counts

    def _end(self) -> None:
        for process in self._living:
            process.kill()
            process.join()
        self._living.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
