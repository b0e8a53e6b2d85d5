"""Proof from histories: what each process did, checked against what bide promises.

Each process appends its events to a journal of its own: what it tried, what the store answered,
what it got. A `kill -9` loses nothing of it but the action itself. When all is over, `check` reads
the journals of all processes and returns which promises were broken, each with the story of the
message. `bide prove` and the tests of bide work with it; a test of your own set-up can, too.

Each message is put once: an id that is used again after a cancel or an ack is another message, and
a history cannot tell the two apart. The processes run on one machine, or on machines whose clocks
agree; the clock of the store may be another one.

Example:
    >>> import bide, tempfile
    >>> from bide.testing.history import Journal, check, journals_in
    >>> folder = tempfile.TemporaryDirectory()
    >>> journal = Journal(f"{folder.name}/shop.journal")
    >>> with bide.Queue("orders", "memory://history") as orders:
    ...     journal.tries("put", ids=["order-41"])
    ...     outcome = orders.put({"order": 41}, id="order-41")
    ...     journal.did("put", ids=["order-41"], dues=[outcome.due])
    >>> result = check(journals_in(folder.name))
    >>> result.confirmed, [violation.kind for violation in result.violations]
    (1, ['lost'])
    >>> print(result.violations[0].what)
    order-41 was confirmed and never delivered
    >>> journal.close(), folder.cleanup()
    (None, None)
"""

from bide.testing.history.checker import CheckedHistory, check
from bide.testing.history.counters import check_counts
from bide.testing.history.journal import Event, Journal, JournalFile, journals_in
from bide.testing.history.story import story_of
from bide.testing.history.violation import KINDS, Violation

__all__ = [
    "KINDS",
    "CheckedHistory",
    "Event",
    "Journal",
    "JournalFile",
    "Violation",
    "check",
    "check_counts",
    "journals_in",
    "story_of",
]
