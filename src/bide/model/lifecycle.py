"""The life of a message as a table: every change of state there is, and what it counts.

The documentation is made of this table, and the conformance suite holds each engine to it. Changes
of three kinds need no command of their own: time makes a delayed message ready; the first command
that meets a lease which is over takes the message back; and what was remembered for long enough is
forgotten by the next command that changes its queue.
"""

from typing import NamedTuple

from bide.model.message import State

__all__ = ["TRANSITIONS", "Transition", "as_markdown", "as_mermaid"]


class Transition(NamedTuple):
    """One way of a message from state to state; `None` is not being there."""

    cause: str
    """The command that does it (`Release` is "end lease"), or "time", "lapse", "forget"."""
    before: State | None
    after: State | None
    when: str = ""
    """Under which condition it is this way and no other."""
    counts: tuple[str, ...] = ()
    """Which counters of `Flow` move by one."""


TRANSITIONS: tuple[Transition, ...] = (
    Transition("put", None, "delayed", "due is still to come", ("put",)),
    Transition("put", None, "ready", "due has come", ("put",)),
    Transition("put", None, "dead", "an import brings a dead letter", ("put", "died")),
    Transition("replace", "delayed", "delayed"),
    Transition("replace", "delayed", "ready", "the new due has come"),
    Transition("replace", "delayed", "dead", "an import brings a dead letter", ("died",)),
    Transition("replace", "ready", "delayed", "the new due is still to come"),
    Transition("replace", "ready", "ready"),
    Transition("replace", "ready", "dead", "an import brings a dead letter", ("died",)),
    Transition("replace", "dead", "delayed", "the new due is still to come", ("revived",)),
    Transition("replace", "dead", "ready", "the new due has come", ("revived",)),
    Transition("replace", "dead", "dead", "an import brings a dead letter", ("revived", "died")),
    Transition("reschedule", "delayed", "delayed"),
    Transition("reschedule", "delayed", "ready", "the new due has come"),
    Transition("reschedule", "ready", "delayed", "the new due is still to come"),
    Transition("reschedule", "ready", "ready"),
    Transition("time", "delayed", "ready", "due has come"),
    Transition("cancel", "delayed", None, "", ("cancelled",)),
    Transition("cancel", "ready", None, "", ("cancelled",)),
    Transition("claim", "ready", "leased", "it is still worth delivering"),
    Transition("claim", "ready", "expired", "it is later than its `expires`", ("expired",)),
    Transition("extend", "leased", "leased"),
    Transition("ack", "leased", None, "the queue keeps nothing", ("acked",)),
    Transition("ack", "leased", "acked", "the queue keeps what was acked", ("acked",)),
    Transition("retry", "leased", "delayed", "with a delay", ("retried",)),
    Transition("retry", "leased", "ready", "without a delay", ("retried",)),
    Transition("retry", "leased", "dead", "its attempts are used up", ("died",)),
    Transition("release", "leased", "ready", "no attempt is counted"),
    Transition("release", "leased", "delayed", "no attempt is counted; with a delay"),
    Transition("end lease", "leased", "ready", "an attempt is left", ("retried",)),
    Transition("end lease", "leased", "dead", "its attempts are used up", ("died",)),
    Transition("bury", "leased", "dead", "", ("died",)),
    Transition("bury", "delayed", "dead", "a move to another store takes it", ("died",)),
    Transition("bury", "ready", "dead", "a move to another store takes it", ("died",)),
    Transition("lapse", "leased", "ready", "an attempt is left", ("lapsed",)),
    Transition("lapse", "leased", "dead", "its attempts are used up", ("lapsed", "died")),
    Transition("revive", "dead", "delayed", "with a delay", ("revived",)),
    Transition("revive", "dead", "ready", "without a delay", ("revived",)),
    Transition("purge", "delayed", None, "", ("purged",)),
    Transition("purge", "ready", None, "", ("purged",)),
    Transition("purge", "dead", None, "", ("purged",)),
    Transition("purge", "acked", None),
    Transition("purge", "expired", None),
    Transition("forget", "acked", None, "`keep` has passed since"),
    Transition("forget", "expired", None, "a day, or `keep` if longer, has passed since"),
)


def as_markdown() -> str:
    """Return the table in Markdown, for the documentation."""
    lines = ["| cause | from | to | when | counts |", "|---|---|---|---|---|"]
    for cause, before, after, when, counts in TRANSITIONS:
        cells = (cause, before or "none", after or "gone", when, ", ".join(counts))
        lines.append(" ".join(f"| {' | '.join(cells)} |".split()))
    return "\n".join(lines) + "\n"


def as_mermaid() -> str:
    """Return the table as a Mermaid state diagram, one arrow for each pair of states."""
    causes: dict[tuple[str, str], list[str]] = {}
    for cause, before, after, _, _ in TRANSITIONS:
        found = causes.setdefault((before or "[*]", after or "[*]"), [])
        if cause not in found:
            found.append(cause)
    arrows = (f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in causes.items())
    return "\n".join(["stateDiagram-v2", *arrows]) + "\n"
