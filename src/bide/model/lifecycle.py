"""The life cycle of a message as a table: all changes of state, and the counters they move.

The documentation shows this table, and the conformance suite checks each engine against it. Four
causes are not commands: "time" makes a delayed message ready, "lapse" ends an expired lease (by the
next command that finds it), "succeed" puts the successor of a message in its place (as a part of
what ended the lease), and "forget" deletes a message that was remembered long enough (by the
next command that changes its queue).
"""

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
    Transition("replace", "leased", "leased", "with `latest`: it is stored as the successor"),
    Transition("succeed", None, "delayed", "after an ack; its due is still to come", ("put",)),
    Transition("succeed", None, "ready", "after an ack; its due has come", ("put",)),
    Transition("succeed", "delayed", "delayed", "its due is still to come"),
    Transition("succeed", "delayed", "ready", "its due has come"),
    Transition("succeed", "ready", "delayed", "its due is still to come"),
    Transition("succeed", "ready", "ready", "its due has come"),
    Transition("succeed", "dead", "delayed", "its due is still to come", ("revived",)),
    Transition("succeed", "dead", "ready", "its due has come", ("revived",)),
    Transition("reschedule", "delayed", "delayed"),
    Transition("reschedule", "delayed", "ready", "the new due has come"),
    Transition("reschedule", "ready", "delayed", "the new due is still to come"),
    Transition("reschedule", "ready", "ready"),
    Transition("edit", "delayed", "delayed"),
    Transition("edit", "delayed", "ready", "the new due has come"),
    Transition("edit", "ready", "delayed", "the new due is still to come"),
    Transition("edit", "ready", "ready"),
    Transition("edit", "dead", "dead"),
    Transition("time", "delayed", "ready", "due has come"),
    Transition("cancel", "delayed", None, "", ("cancelled",)),
    Transition("cancel", "ready", None, "", ("cancelled",)),
    Transition("cancel", "leased", "leased", "its successor is removed"),
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
