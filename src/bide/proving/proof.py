"""The result: figures, what was broken, and what the settings of the store allow to be lost."""

from typing import Any

import msgspec

from bide.engines.findings import Finding
from bide.testing.history import CheckedHistory, Violation

ROWS = {
    "lost": ("lost",),
    "early": ("early",),
    "after_end": ("cancelled", "closed", "acked", "acked and cancelled", "not gone"),
    "two_holders": ("two holders", "token", "acked twice"),
    "strange": ("never put", "altered"),
    "clock_set": ("clock",),
    "does_not_balance": ("audit",),
}
"""The kinds of violations that each figure counts; those that are unexplained have one, too."""

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


class Proof(msgspec.Struct):
    """The result of a run. True if no promise was broken."""

    store: str
    """The URL of the store, without its password."""
    queue: str
    processes: int
    seed: int
    seconds: float
    """How long the processes were at work."""
    kills: int
    faults: int
    """How often the user's own fault was run."""
    pending: int
    """The backlog that was put before."""
    checked: CheckedHistory
    """What the journals tell."""
    findings: list[Finding]
    """What the settings of the store allow to be lost: that of `bide doctor`."""
    unexamined: str = ""
    """Why the settings could not be examined."""

    def __bool__(self) -> bool:
        return bool(self.checked)

    @property
    def examples(self) -> list[Violation]:
        """What was broken: of each kind some violations with their stories, not all of them."""
        return [
            violation
            for violation in self.checked.violations
            if violation.story or violation.id is None
        ]

    @property
    def untold(self) -> int:
        """How many violations are left out of `examples`."""
        return len(self.checked.violations) - len(self.examples)

    def broken(self) -> dict[str, int]:
        """Return how often each promise was broken, by the names of the figures."""
        counts = {name: self.checked.of_kind(*kinds) for name, kinds in ROWS.items()}
        return {**counts, "twice_unexplained": self.checked.unexplained}

    def lateness(self) -> dict[str, int]:
        """Return how late messages were delivered for the first time, in milliseconds."""
        figures = {name: self.checked.late(part) for name, part in PERCENTILES.items()}
        return {**figures, "max": self.checked.late(1)}

    def per_second(self) -> float:
        """Return how many messages were acked per second, on average, while processes died."""
        return self.checked.acked / self.seconds if self.seconds else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the figures, in the order in which they are shown."""
        return {
            "proved": bool(self),
            "kills": self.kills,
            "faults": self.faults,
            "confirmed": self.checked.confirmed,
            "delivered": self.checked.delivered,
            "acked": self.checked.acked,
            "cancelled": self.checked.cancelled,
            **self.broken(),
            "twice_explained": self.checked.explained,
        }

    def as_json(self) -> dict[str, Any]:
        """Return everything, for programs."""
        return {
            **self.facts(),
            "twice": self.checked.twice,
            "lateness": self.lateness(),
            "per_second": round(self.per_second(), 1),
            "seconds": round(self.seconds, 1),
            "store": self.store,
            "queue": self.queue,
            "processes": self.processes,
            "pending": self.pending,
            "seed": self.seed,
            "settings": self.findings,
            "settings_unknown": self.unexamined,
            "violations": self.examples,
            "more_violations": self.untold,
        }

    def table(self) -> list[tuple[str, str, bool]]:
        """Return the result for people: what, how much, and whether it is wrong."""
        checked, broken, late = self.checked, self.broken(), self.lateness()
        reasons = ", ".join(
            f"{count:,} {reason}"
            for reason, count in sorted(checked.twice.items())
            if reason != "unexplained"
        )
        explained = f"{checked.explained:,}{f' ({reasons})' if reasons else ''}"
        lateness = "   ".join(f"{name} {ms:,} ms" for name, ms in late.items())
        pending = f" ({self.pending:,} of them put before)" if self.pending else ""
        rows = [
            ("kills", f"{self.kills:,} of {self.processes} processes at a time", False),
            ("faults", f"{self.faults:,}", False),
            ("confirmed", f"{checked.confirmed:,} messages{pending}", False),
            *((_WORDS[name], f"{broken[name]:,}", broken[name] > 0) for name in ROWS),
            ("twice, explained", explained, False),
            (
                "twice, unexplained",
                f"{checked.unexplained:,}",
                checked.unexplained > 0,
            ),
            ("lateness", lateness, False),
            ("speed", f"{self.per_second():,.0f} messages/s for {self.seconds:.1f} s", False),
        ]
        return [row for row in rows if row[0] not in _RARE or row[2]]

    def verdict(self) -> str:
        """Say in a sentence what was proved, or not."""
        if self:
            return (
                f"proved: nothing that {self.store} had confirmed was lost, early or "
                "delivered twice without a reason"
            )
        return f"NOT proved: {self.store} has broken {len(self.checked.violations):,} promises"


_WORDS = {
    "lost": "lost",
    "early": "early",
    "after_end": "after the end",
    "two_holders": "two holders",
    "strange": "not what was put",
    "clock_set": "clock was set",
    "does_not_balance": "does not balance",
}
"""What a figure is called for people."""

_RARE = {"not what was put", "clock was set"}
"""What is shown only if it has happened."""
