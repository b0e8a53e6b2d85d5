"""A whole run: fill, let processes work and die, drain, read what is left, check, delete."""

import platform
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from bide.engines.findings import Finding, examine
from bide.engines.registry import mask
from bide.model.errors import NotEmpty, StoreError, Unsupported
from bide.proving.backlog import drain, fill, note_left, remove
from bide.proving.crew import ProvingCrew
from bide.proving.plan import ProvingPlan, ProvingStopped
from bide.proving.proof import Proof
from bide.proving.user_fault import UserFault
from bide.queue.sync import Queue
from bide.testing.history import Journal, check, check_counts, journals_in
from bide.testing.history.checker import parts_of
from bide.testing.history.violation import Violation

TICK = 0.02
"""Seconds between two looks at the time."""

LONGEST_EXAMINATION = 5.0
"""For how many seconds messages of the store are read for findings."""


class ProgressBar(Protocol):
    """Shows how far a step has come."""

    def advance(self, by: int = 1) -> object:
        """Count what was done."""


ShowProgress = Callable[[str, int | None], AbstractContextManager[ProgressBar]]
"""Returns a block that shows the progress of a step: what it says, and how much there is to do."""


def prove(
    plan: ProvingPlan, folder: Path, show: ShowProgress, warn: Callable[[str], object]
) -> Proof:
    """Carry out a plan, and return what it proves.

    Args:
        plan: the plan.
        folder: an empty one, for the journals.
        show: shows the progress.
        warn: is called with what the user has to know besides.

    Raises:
        ProvingStopped: it could not be carried out to its end.
        StoreError: the store fails without a fault.
    """
    chance = random.Random(plan.seed)
    # While no queue is open here: to look at a SQLite file ends the locks that this process has.
    _must_be_new(plan)
    findings, unexamined = _examine(plan.url)
    with Queue(plan.queue, plan.url, holder="prove") as queue, _removed(queue, show, warn):
        journal = Journal(folder / "prove.journal")
        journal.did("start", name="prove", machine=platform.node())
        if plan.pending:
            with show("filling the queue", plan.pending) as bar:
                fill(queue, plan, journal, bar.advance)
        with ExitStack() as stack:
            crew = stack.enter_context(ProvingCrew(plan, folder, journal, chance))
            fault = None
            crew.start()
            if plan.fault is not None:
                fault = UserFault(plan.fault, plan.every, folder / "fault.log", journal)
                stack.enter_context(fault)
            seconds = _attack(plan, crew, fault, chance, show)
        with show("draining the queue", None) as bar:
            drain(queue, journal, bar.advance)
        with show("reading what is left", plan.pending) as bar:
            note_left(queue, journal, bar.advance)
        with show("auditing the queue", None):
            audit = queue.audit()
        journal.close()
    journals = journals_in(folder)
    with show("checking the journals", parts_of(journals)) as bar:
        checked = check(journals, advance=bar.advance)
    checked.violations += check_counts(journals, audit.counts)
    checked.violations += [Violation("audit", problem) for problem in audit.problems]
    if checked and not checked.acked:
        raise ProvingStopped(
            f"no message was acked, so nothing is proved{_last_error(folder)}: let it run longer"
        )
    return Proof(
        store=mask(plan.url),
        queue=plan.queue,
        processes=plan.processes,
        seed=plan.seed,
        seconds=seconds,
        kills=crew.kills,
        faults=0 if fault is None else fault.times,
        pending=plan.pending,
        checked=checked,
        findings=findings,
        unexamined=unexamined,
    )


def _must_be_new(plan: ProvingPlan) -> None:
    """Make the store, and check that nobody has used the queue.

    Raises:
        ProvingStopped: somebody has.
    """
    with Queue(plan.queue, plan.url) as queue:
        if queue.counts().flow.put:
            raise ProvingStopped(f"there is a queue {queue.name!r} already; run it again")


@contextmanager
def _removed(queue: Queue, show: ShowProgress, warn: Callable[[str], object]) -> Iterator[None]:
    """Delete the queue at the end of the block, also after Ctrl-C."""
    try:
        yield
    finally:
        try:
            with show("deleting the queue", None):
                remove(queue)
        except (StoreError, NotEmpty) as error:
            warn(
                f"the queue {queue.name} could not be deleted: {error}; purge its messages with "
                f"bide purge {queue.name}, and then bide delete {queue.name}"
            )


def _examine(url: str) -> tuple[list[Finding], str]:
    """Return what the settings of the store allow to be lost, or why nobody knows."""
    try:
        return list(examine(url, LONGEST_EXAMINATION)), ""
    except Unsupported as error:
        return [], str(error)


def _attack(
    plan: ProvingPlan,
    crew: ProvingCrew,
    fault: UserFault | None,
    chance: random.Random,
    show: ShowProgress,
) -> float:
    """Kill processes and run the fault until it is enough; return how many seconds it took."""
    while not crew.has_started:
        time.sleep(TICK)
        crew.check()
    began = time.monotonic()
    next_kill = began + _pause(plan, chance)
    shown = 0
    by_time = plan.seconds is not None
    total = round(plan.seconds) if plan.seconds is not None else plan.kills
    label = f"killing {plan.processes} processes" + (", seconds" if by_time else "")
    with show(label, total) as bar:
        while not _is_enough(plan, crew, fault, time.monotonic() - began):
            time.sleep(TICK)
            crew.check()
            if fault is not None:
                fault.tick()
            if time.monotonic() >= next_kill and crew.kill_one():
                next_kill = time.monotonic() + _pause(plan, chance)
            done = int(time.monotonic() - began) if by_time else crew.kills
            bar.advance(done - shown)
            shown = done
        if fault is not None:
            fault.finish()
        crew.end()
    return time.monotonic() - began


def _pause(plan: ProvingPlan, chance: random.Random) -> float:
    """Return the time in seconds until the next kill: a random one, so that it strikes anything."""
    return plan.kill_every * chance.uniform(0.5, 1.5)


def _is_enough(
    plan: ProvingPlan, crew: ProvingCrew, fault: UserFault | None, elapsed: float
) -> bool:
    """Return whether the time is over, or there were enough kills and the fault has been run."""
    if plan.seconds is not None and elapsed >= plan.seconds:
        return True
    has_run = fault is None or fault.times > 0
    return plan.kills is not None and crew.kills >= plan.kills and has_run


def _last_error(folder: Path) -> str:
    """Return the last error that a process had from the store, as the end of a sentence."""
    errors = [
        (event["at"], event["error"])
        for journal in journals_in(folder)
        for event in journal
        if "error" in event
    ]
    return f" (the last error: {max(errors)[1]})" if errors else ""
