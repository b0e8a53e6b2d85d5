"""What a crash test has found: effects that happen twice, and effects that never happen."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bide.testing.crashing.effects import EffectRecord

LISTED = 3
"""The number of crash points that a report lists for one effect; it counts the others."""


@dataclass(frozen=True)
class CrashFinding:
    """One effect that went wrong because the process died at one point."""

    effect: str
    """The call, such as "mailer.send(42)"; for a dead letter its last error."""
    point: str
    """Where the process died: "after mailer.send (shop.py:12)"."""

    def __str__(self) -> str:
        return f"{self.effect}, if the process dies {self.point}"


@dataclass(frozen=True, repr=False)
class CrashReport:
    """The result of `crash_points`. It is true if no finding is in it.

    `print(report)` shows all findings; a failed test that used the fixture `bide_crash` shows them,
    too.
    """

    points: tuple[str, ...]
    """All places at which the process died, each in a run of its own, in their order."""
    effects: tuple[str, ...]
    """What happens in a run without a crash."""
    twice: tuple[CrashFinding, ...] = ()
    """Effects that happened more often than in a run without a crash."""
    never: tuple[CrashFinding, ...] = ()
    """Effects that happen in a run without a crash, and did not happen after one."""
    dead: tuple[CrashFinding, ...] = ()
    """Messages that became dead letters after a crash; the effect is their last error."""

    def __bool__(self) -> bool:
        return not (self.twice or self.never or self.dead)

    def __repr__(self) -> str:
        if self:
            return f"<CrashReport: {len(self.points)} crash points, no finding>"
        count = len(self.twice) + len(self.never) + len(self.dead)
        first = (*self.twice, *self.never, *self.dead)[0]
        kind = "twice" if self.twice else "never" if self.never else "dead"
        return f"<CrashReport: {count} findings, the first: {kind} {first}; print it for all>"

    def __str__(self) -> str:
        if self:
            effects = ", ".join(self.effects) or "none"
            return f"{len(self.points)} crash points, no finding; effects: {effects}"
        lines = [f"{len(self.points)} crash points"]
        lines += _listed("happens twice", self.twice)
        lines += _listed("never happens", self.never)
        lines += _listed("the message becomes a dead letter", self.dead)
        return "\n".join(lines)


def _listed(kind: str, findings: Iterable[CrashFinding]) -> list[str]:
    """Return the lines of a report about one kind of finding, by effect."""
    points_by_effect: dict[str, list[str]] = {}
    for finding in findings:
        points_by_effect.setdefault(finding.effect, []).append(finding.point)
    lines = []
    for effect, points in points_by_effect.items():
        lines.append(f"{kind}: {effect}, if the process dies")
        lines += [f"    {point}" for point in points[:LISTED]]
        if len(points) > LISTED:
            lines.append(f"    and {len(points) - LISTED} more")
    return lines


class Differences(NamedTuple):
    """How the effects of a run differ from those of a run without a crash."""

    twice: list[str]
    """The calls that happened too often."""
    never: list[str]
    """The calls that did not happen."""


def compare(expected: Sequence[EffectRecord], actual: Sequence[EffectRecord]) -> Differences:
    """Compare the effects of a run with those of a run without a crash.

    Effects are told apart by their keys. Keys may differ from run to run, such as random ids: of
    each name, an effect with an unknown key stands for one that is missing.
    """
    twice: list[str] = []
    never: list[str] = []
    expected_by_name, actual_by_name = _by_name(expected), _by_name(actual)
    calls = {(record.name, record.key): record.call for record in (*actual, *expected)}
    for name in dict.fromkeys([*expected_by_name, *actual_by_name]):
        before, after = expected_by_name.get(name, Counter()), actual_by_name.get(name, Counter())
        if not before:  # what only a second delivery does: it may do that once
            twice += [calls[name, key] for key, count in after.items() if count > 1]
            continue
        surplus, missing = after - before, list((before - after).elements())
        twice += [calls[name, key] for key in surplus.elements() if key in before]
        unknown = [key for key in surplus.elements() if key not in before]
        twice += [calls[name, key] for key in unknown[len(missing) :]]
        never += [calls[name, key] for key in missing[len(unknown) :]]
    return Differences(list(dict.fromkeys(twice)), list(dict.fromkeys(never)))


def _by_name(records: Iterable[EffectRecord]) -> dict[str, Counter[str]]:
    """Return how often each effect has happened, by name and key."""
    counts: dict[str, Counter[str]] = {}
    for record in records:
        by_key = counts.setdefault(record.name, Counter())
        by_key[record.key] = 1 if record.once else by_key[record.key] + 1
    return counts
