"""The proof: compares the records of the processes with the store."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from bide.queue.results import Audit


class Handling(NamedTuple):
    """One order, handled by one worker."""

    worker: str
    id: str
    attempt: int
    late: int
    """Milliseconds from the order's due time to the start of its handling."""


@dataclass
class Records:
    """Everything that the processes have written down."""

    put: list[str] = field(default_factory=list)
    paid: list[str] = field(default_factory=list)
    """Cancels that were confirmed."""
    too_late: list[str] = field(default_factory=list)
    """Cancels that were refused."""
    handled: list[Handling] = field(default_factory=list)
    """Written before the ack, so that a handling is known even if its worker is killed."""
    acked: list[str] = field(default_factory=list)
    """Acks that were confirmed."""
    positions: dict[Path, int] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the journals of a demo's folder."""
        records = cls()
        records.update(folder)
        return records

    def update(self, folder: Path) -> None:
        """Read what the journals have more than at the last call, without a torn last line."""
        for path in sorted(folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self.positions.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            self.positions[path] = self.positions.get(path, 0) + len(whole) + bool(whole)
            for what, id, *more in map(msgspec.json.decode, whole.splitlines()):
                if what == "handled":
                    self.handled.append(Handling(path.stem, id, *more))
                else:
                    getattr(self, what.replace(" ", "_")).append(id)

    def first_lateness(self, worker: str | None = None) -> list[int]:
        """Return how late first attempts began, sorted. A redelivery is late by its lease."""
        return sorted(
            one.late for one in self.handled if one.attempt == 1 and worker in (None, one.worker)
        )


class Check(NamedTuple):
    """One statement, and whether it holds."""

    claim: str
    problems: list[str]
    detail: str

    @property
    def holds(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def prove(records: Records, audit: Audit, orders: int) -> list[Check]:
    """Check a run of the demo.

    Args:
        records: of the processes.
        audit: of the store, after all processes have ended.
        orders: how many orders there should be.
    """
    paid = set(records.paid)
    unpaid = set(records.put) - paid
    handled = {handling.id for handling in records.handled}
    again = len(records.handled) - len(handled)
    flow = audit.counts.flow
    return [
        Check(
            "every order was put", _differ("orders were put", len(records.put), orders),
            f"{len(records.put):,}",
        ),
        Check(
            "every unpaid order timed out",
            _some("never timed out", unpaid - handled)
            + _some("timed out, but were never put", handled - set(records.put)),
            f"{len(unpaid):,}, {len(records.too_late):,} of them paid too late",
        ),
        Check(
            "no order that was paid in time was touched",
            _some("were paid in time, and timed out all the same", paid & handled),
            f"{len(paid):,}",
        ),
        Check(
            "the store counts what the processes counted",
            list(_miscounted(records, audit, len(unpaid))),
            f"{flow.put:,} put = {flow.cancelled:,} cancelled + {flow.acked:,} acked",
        ),
        Check(
            "every second handling is explained by a lapsed lease",
            list(_unexplained(records, flow.lapsed + flow.retried)),
            f"{flow.lapsed:,} lapsed, {again:,} handled twice",
        ),
        Check(
            "none was early", _some("were early", {h.id for h in records.handled if h.late < 0}),
            "",
        ),
        Check("the audit balances", list(audit.problems), "nothing is left in the queue"),
    ]  # fmt: skip


def _differ(what: str, found: int, wanted: int) -> list[str]:
    return [] if found == wanted else [f"{found:,} {what}, it should be {wanted:,}"]


def _some(what: str, ids: Iterable[str]) -> list[str]:
    listed = sorted(ids)
    if not listed:
        return []
    more = ", ..." if len(listed) > 3 else ""
    return [f"{len(listed):,} {what}: {', '.join(listed[:3])}{more}"]


def _miscounted(records: Records, audit: Audit, unpaid: int) -> Iterator[str]:
    flow, sizes = audit.counts.flow, audit.counts.sizes
    yield from _differ("puts are counted by the store", flow.put, len(records.put))
    yield from _differ("cancels are counted by the store", flow.cancelled, len(records.paid))
    yield from _differ("acks are counted by the store", flow.acked, unpaid)
    yield from _differ("messages are left in the queue", sizes.total, 0)
    yield from _differ("died", flow.died, 0)
    twice = [id for id, times in Counter(records.acked).items() if times > 1]
    yield from _some("were acked twice", twice)


def _unexplained(records: Records, lapses: int) -> Iterator[str]:
    """Each delivery has its number: no number comes twice, and those above 1 are the lapses."""
    attempts: dict[str, list[int]] = defaultdict(list)
    for handling in records.handled:
        attempts[handling.id].append(handling.attempt)
    twice = [id for id, numbers in attempts.items() if len(set(numbers)) < len(numbers)]
    yield from _some("were handed out twice as the same attempt", twice)
    redelivered = sum(max(numbers) - 1 for numbers in attempts.values())
    yield from _differ("redeliveries were seen by the workers", redelivered, lapses)


def percentile(values: list[int], part: float) -> int:
    """Return the value below which `part` of the sorted values lie; 0 for none."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0
