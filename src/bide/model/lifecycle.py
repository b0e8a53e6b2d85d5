"""The life cycle of a message as a table: all changes of state, and the counters they move.

The documentation shows this table, and the conformance suite checks each engine against it. Four
causes are not commands: "time" makes a delayed message ready, "lapse" ends an expired lease (by the
next command that finds it), "succeed" puts the successor of a message in its place (as a part of
what ended the lease), and "forget" deletes a message that was remembered long enough (by the
next command that changes its queue).
"""

from collections.abc import Iterator
from typing import NamedTuple

from bide.model.message import State


class Transition(NamedTuple):
    """One change of state; `None`: the message does not exist."""

    cause: str
    """The command (`Release` is "end lease"), or "time", "lapse", "succeed", "forget"."""
    before: State | None
    after: State | None
    when: str = ""
    """The condition under which this change happens."""
    counts: tuple[str, ...] = ()
    """The counters of `Flow` that grow by one."""


STOPPED = "its worker was asked to stop, or its group is closed"
CLOSED = "its group is closed"
NO_LONGER = "it was cancelled meanwhile"


def _by_due(
    cause: str, before: State | None, counts: tuple[str, ...] = (), due: str = "the new due"
) -> Iterator[Transition]:
    """Yield two transitions: to delayed if a due time is still to come, else to ready.

    The one that keeps the state is shown without this condition: it is what usually happens.

    Args:
        cause: as in `Transition`.
        before: as in `Transition`.
        counts: as in `Transition`.
        due: names the due time that decides, in the condition.
    """
    if_later = "" if before == "delayed" else f"{due} is still to come"
    yield Transition(cause, before, "delayed", if_later, counts)
    if_now = "" if before == "ready" else f"{due} has come"
    yield Transition(cause, before, "ready", if_now, counts)


TRANSITIONS: tuple[Transition, ...] = (
    *_by_due("put", None, ("put",), "due"),
    Transition("put", None, "dead", "an import brings a dead letter", ("put",)),
    *_by_due("replace", "delayed"),
    Transition("replace", "delayed", "dead", "an import brings a dead letter"),
    *_by_due("replace", "ready"),
    Transition("replace", "ready", "dead", "an import brings a dead letter"),
    *_by_due("replace", "dead", ("revived",)),
    Transition("replace", "dead", "dead", "an import brings a dead letter"),
    Transition(
        "replace", "dead", None, "it was to be revived, and its group is closed", ("cancelled",)
    ),
    Transition("replace", "leased", "leased", "with `latest`: it is stored as the successor"),
    *_by_due("succeed", None, ("put",), "after an ack or a stop; its due"),
    *_by_due("succeed", "delayed", due="its due"),
    *_by_due("succeed", "ready", due="its due"),
    *_by_due("succeed", "dead", ("revived",), "its due"),
    *_by_due("reschedule", "delayed"),
    *_by_due("reschedule", "ready"),
    Transition("reschedule", "delayed", None, CLOSED, ("cancelled",)),
    Transition("reschedule", "ready", None, CLOSED, ("cancelled",)),
    *_by_due("postpone", "delayed"),
    *_by_due("postpone", "ready"),
    Transition("postpone", "delayed", None, CLOSED, ("cancelled",)),
    Transition("postpone", "ready", None, CLOSED, ("cancelled",)),
    *_by_due("edit", "delayed"),
    *_by_due("edit", "ready"),
    Transition("edit", "delayed", None, CLOSED, ("cancelled",)),
    Transition("edit", "ready", None, CLOSED, ("cancelled",)),
    Transition("edit", "dead", "dead"),
    Transition("time", "delayed", "ready", "due has come"),
    Transition("cancel", "delayed", None, "", ("cancelled",)),
    Transition("cancel", "ready", None, "", ("cancelled",)),
    Transition(
        "cancel", "leased", "leased", "its successor is removed; `running`: its worker is to stop"
    ),
    Transition("claim", "ready", "leased", "it is still worth delivering"),
    Transition("claim", "ready", "expired", "it is later than its `expires`", ("expired",)),
    Transition("claim", "ready", None, CLOSED, ("cancelled",)),
    Transition("extend", "leased", "leased"),
    Transition("ack", "leased", None, "the queue keeps nothing", ("acked",)),
    Transition("ack", "leased", "acked", "the queue keeps what was acked", ("acked",)),
    Transition("ack", "leased", "delayed", "it repeats; its next run is to come", ("acked", "put")),
    Transition("ack", "leased", "ready", "it repeats", ("acked", "put")),
    *_by_due("renew dead", "leased", due="its next run"),
    Transition("renew dead", "leased", "dead", "it was the last run", ("died",)),
    Transition("renew dead", "leased", None, NO_LONGER, ("cancelled",)),
    *_by_due("renew expired", "leased", ("expired", "put"), "its next run"),
    Transition("renew expired", "leased", "expired", "it was the last run", ("expired",)),
    Transition("renew expired", "leased", None, NO_LONGER, ("cancelled",)),
    *_by_due("renew ended", "leased", due="its next run"),
    Transition("renew ended", "leased", None, f"no run is left, or {NO_LONGER}", ("cancelled",)),
    Transition("retry", "leased", "delayed", "with a delay", ("retried",)),
    Transition("retry", "leased", "ready", "without a delay", ("retried",)),
    Transition("retry", "leased", "dead", "its attempts are used up", ("died",)),
    Transition("retry", "leased", None, STOPPED, ("cancelled",)),
    Transition("release", "leased", "ready", "no attempt is counted"),
    Transition("release", "leased", "delayed", "no attempt is counted; with a delay"),
    Transition("release", "leased", None, STOPPED, ("cancelled",)),
    Transition("end lease", "leased", "ready", "an attempt is left", ("retried",)),
    Transition("end lease", "leased", "dead", "its attempts are used up", ("died",)),
    Transition("end lease", "leased", None, STOPPED, ("cancelled",)),
    Transition("bury", "leased", "dead", "", ("died",)),
    Transition("bury", "leased", "ready", "it repeats", ("retried",)),
    Transition("bury", "leased", None, STOPPED, ("cancelled",)),
    Transition("bury", "delayed", "dead", "a move to another store takes it"),
    Transition("bury", "ready", "dead", "a move to another store takes it"),
    Transition("lapse", "leased", "ready", "an attempt is left", ("lapsed",)),
    Transition("lapse", "leased", "dead", "its attempts are used up", ("died",)),
    Transition("lapse", "leased", None, STOPPED, ("lapsed", "cancelled")),
    Transition("revive", "dead", "delayed", "with a delay", ("revived",)),
    Transition("revive", "dead", "ready", "without a delay", ("revived",)),
    Transition("revive", "dead", None, CLOSED, ("cancelled",)),
    Transition("purge", "delayed", None, "", ("purged",)),
    Transition("purge", "ready", None, "", ("purged",)),
    Transition("purge", "dead", None, "", ("purged",)),
    Transition("move", "dead", None, "another store has it", ("moved",)),
    Transition("purge", "acked", None),
    Transition("purge", "expired", None),
    Transition("forget", "acked", None, "`keep` has passed since"),
    Transition("forget", "expired", None, "a day, or `keep` if longer, has passed since"),
)
