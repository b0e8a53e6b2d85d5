"""The proof: compares the records of the processes with the store."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from bide.queue.results import Audit


class HandledOrder(NamedTuple):
    """One order, handled by a worker."""

    id: str
    attempt: int
    late: int
    """Milliseconds from the order's due time to the start of its handling."""


@dataclass
class DemoRecords:
    """Everything that the processes have written down."""

    put: list[str] = field(default_factory=list)
    paid: list[str] = field(default_factory=list)
    """Cancels that were confirmed."""
    too_late: list[str] = field(default_factory=list)
    """Cancels that were refused."""
    handled: list[HandledOrder] = field(default_factory=list)
    """Written before the ack, so that a handling is known even if its worker is killed."""
    acked: list[str] = field(default_factory=list)
    """Acks that were confirmed."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the journals of a demo's folder.

        A line is `[the name of a field of this class, an order's id, ...]`; "handled" has the other
        fields of a `HandledOrder`, too.
        """
        records = cls()
        for path in folder.glob("*.jsonl"):
            *lines, _torn = path.read_bytes().split(b"\n")  # a killed process may tear its last one
            for kind, id, *rest in map(msgspec.json.decode, lines):
                if kind == "handled":
                    records.handled.append(HandledOrder(id, *rest))
                else:
                    getattr(records, kind).append(id)
        return records


class Check(NamedTuple):
    """One statement, which holds if there are no problems."""

    claim: str
    """The statement."""
    problems: list[str]
    """What contradicts it."""
    detail: str
    """The figures that it is about; "" for none."""


def prove(records: DemoRecords, audit: Audit, orders: int) -> list[Check]:
    """Return what was checked in a run of the demo.

    Args:
        records: of the processes.
        audit: of the store, after all processes have ended.
        orders: how many orders there should be.
    """
    put, paid, flow = set(records.put), set(records.paid), audit.counts.flow
    unpaid = put - paid
    attempts: dict[str, list[int]] = defaultdict(list)
    for handling in records.handled:
        attempts[handling.id].append(handling.attempt)
    handled, lapses = set(attempts), flow.lapsed + flow.retried
    # Each delivery has its number: no number comes twice, and those above 1 are the lapses.
    doubled = {id for id, numbers in attempts.items() if len(set(numbers)) < len(numbers)}
    redelivered = sum(max(numbers) - 1 for numbers in attempts.values())
    acked_twice = {id for id, times in Counter(records.acked).items() if times > 1}
    checks = (
        (
            "every order was put",
            f"{len(records.put):,}",
            _differ("orders were put", len(records.put), orders),
        ),
        (
            "every unpaid order timed out",
            f"{len(unpaid):,}, {len(records.too_late):,} of them paid too late",
            _affected("never timed out", unpaid - handled),
            _affected("timed out, but were never put", handled - put),
        ),
        (
            "no order that was paid in time was touched",
            f"{len(paid):,}",
            _affected("were paid in time, and timed out all the same", paid & handled),
        ),
        (
            "the store counts what the processes counted",
            f"{flow.put:,} put = {flow.cancelled:,} cancelled + {flow.acked:,} acked",
            _differ("puts are counted by the store", flow.put, len(records.put)),
            _differ("cancels are counted by the store", flow.cancelled, len(records.paid)),
            _differ("acks are counted by the store", flow.acked, len(unpaid)),
            _differ("messages are left in the queue", audit.counts.sizes.total, 0),
            _differ("died", flow.died, 0),
            _affected("were acked twice", acked_twice),
        ),
        (
            "every second handling is explained by a lapsed lease",
            f"{flow.lapsed:,} lapsed, {len(records.handled) - len(handled):,} handled twice",
            _affected("were handed out twice as the same attempt", doubled),
            _differ("redeliveries were seen by the workers", redelivered, lapses),
        ),
        (
            "none was early",
            "",
            _affected(
                "were early", {handling.id for handling in records.handled if handling.late < 0}
            ),
        ),
        ("the audit balances", "nothing is left in the queue", list(audit.problems)),
    )
    return [Check(claim, list(chain(*problems)), detail) for claim, detail, *problems in checks]


def _differ(predicate: str, count: int, expected: int) -> list[str]:
    """Return a sentence, "3 were early, it should be 2", if two numbers differ; else none."""
    return [] if count == expected else [f"{count:,} {predicate}, it should be {expected:,}"]


def _affected(predicate: str, ids: set[str]) -> list[str]:
    """Return a sentence about orders for which a check failed, with the first ids; else nothing."""
    if not ids:
        return []
    ellipsis = ", ..." if len(ids) > 3 else ""
    return [f"{len(ids):,} {predicate}: {', '.join(sorted(ids)[:3])}{ellipsis}"]


def percentile(values: list[int], part: float) -> int:
    """Return the value below which `part` of the sorted values lie; 0 for none."""
    if not values:
        return 0
    return values[min(len(values) - 1, int(len(values) * part))]
