"""Mutants written by hand: each stands for a mistake that somebody could make."""

from typing import NamedTuple

MEMORY = "memory/engine.py"
STATE = "memory/queue_state.py"
RECORD = "rules/record.py"
CHANGE = "rules/change.py"
DECIDE = "rules/decide.py"
LEASES = "rules/leases.py"
UNHELD = "rules/unheld.py"
PUTTING = "rules/putting.py"
CHANGING = "execution/changing.py"
PAUSING = "execution/pausing.py"
CLAIMING = "execution/claiming.py"
SESSION = "sqlite/session.py"
SQL = "sqlite/statements.sql"
READING = "sqlite/reading.sql"
QUEUE = "sqlite/queue_state.py"
PUT = "sqlite/put.py"
LIMITS = "sqlite/limits.py"
ROWS = "sqlite/tables.py"
READ = "sqlite/reading.py"
SCANNING = "sqlite/scanning.py"


class Mutant(NamedTuple):
    """One change: the text `old`, which stands in the file exactly once, becomes `new`."""

    name: str
    path: str
    """Below `src/bide/engines`."""
    old: str
    new: str

    @property
    def engine(self) -> str:
        """Whose source it changes; the memory engine, of what it shares with another."""
        folder = self.path.partition("/")[0]
        return "memory" if folder in ("rules", "execution") else folder

    def applied(self, text: str) -> str | None:
        """Return the file's text with the change; `None` if `old` is not there exactly once."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


MUTANTS = [
    Mutant(
        "one tick early",
        STATE,
        'due = self._upto("delayed", delayed_reach(self.now), limit)',
        'due = self._upto("delayed", delayed_reach(self.now + 1), limit)',
    ),
    Mutant(
        "a lapse one tick late", LEASES, "record.until > facts.now", "record.until >= facts.now"
    ),
    Mutant(
        "a lapse is not counted",
        LEASES,
        'counts=("lapsed", *change.counts)',
        "counts=change.counts",
    ),
    Mutant(
        "expired one tick early",
        RECORD,
        "now > self.due + self.expires",
        "now >= self.due + self.expires",
    ),
    Mutant("the token does not count", DECIDE, "name.token == record.token", "True"),
    Mutant(
        "a version does not count", DECIDE, "version is None or record.is_still(version)", "True"
    ),
    Mutant("tokens do not grow", CLAIMING, "row.token += 1", "row.token += 0"),
    Mutant(
        "one attempt too many",
        LEASES,
        "attempted.attempt >= attempted.attempts",
        "attempted.attempt > attempted.attempts",
    ),
    Mutant(
        "release counts an attempt",
        LEASES,
        "return Change(record, ready(released))",
        "return Change(record, ready(with_failure(record, record.attempt + 1, '', 0)))",
    ),
    Mutant(
        "a late release counts an attempt", LEASES, "    if command.release:\n", "    if False:\n"
    ),
    Mutant(
        "retry puts off expiry", LEASES, "record.expires - (due - record.due)", "record.expires"
    ),
    Mutant(
        "a message that was moved is postponed",
        UNHELD,
        "record.state not in WAITING or record.due != due_now",
        "record.state not in WAITING",
    ),
    Mutant(
        "a message that is due as planned says that it is not",
        UNHELD,
        "if after.planned == after.due:",
        "if False:",
    ),
    Mutant(
        "revive keeps the attempts",
        UNHELD,
        "replace(after, attempt=0, asked=asked_due)",
        "replace(after, asked=asked_due)",
    ),
    Mutant(
        "a replaced one loses its place",
        PUTTING,
        "Record.of(item, due, record.seq, created)",
        "Record.of(item, due, -record.seq, created)",
    ),
    Mutant(
        "the dead cannot be replaced",
        PUTTING,
        '("delayed", "ready", "dead")',
        '("delayed", "ready")',
    ),
    Mutant(
        "purged ones are not counted",
        CHANGE,
        "Change(record, None, (how,), end_of",
        "Change(record, None, (), end_of",
    ),
    Mutant(
        "a successor of what was acked is not counted",
        PUTTING,
        'counts = ("put",)\n    elif',
        "counts = ()\n    elif",
    ),
    Mutant(
        "keep counts from too late",
        STATE,
        '("acked", self.now - keep, FORGET)',
        '("acked", self.now - keep - 1, FORGET)',
    ),
    Mutant("expired ones kept as acked ones", STATE, "max(keep, EXPIRED_KEEP)", "keep"),
    Mutant(
        "a claim weighs all",
        STATE,
        'due = self._upto("delayed", delayed_reach(self.now), limit)',
        'due = self._upto("delayed", delayed_reach(self.now), len(self.records))',
    ),
    Mutant("paused queues hand out", CLAIMING, "if row.paused:", "if False:"),
    Mutant(
        "resuming wakes nobody",
        CHANGING,
        "wake = pause_or_resume(queue, command)",
        "wake, _ = None, pause_or_resume(queue, command)",
    ),
    Mutant(
        "a pause does not end by itself",
        PAUSING,
        "if pause.lasts(queue.now) else None",
        "if True else None",
    ),
    Mutant(
        "a cursor stays on its message",
        STATE,
        "(after.rank, after.seq + 1)",
        "(after.rank, after.seq)",
    ),
    Mutant(
        "a scan forgets returns in the middle",
        STATE,
        "number > since and",
        "number > since + 1 and",
    ),
    Mutant(
        "a scan ends after many returns",
        STATE,
        "<= since + MAX_RETURNED:",
        "<= since + 2 * MAX_RETURNED:",
    ),
    Mutant(
        "after is not included", RECORD, "record.due >= where.after", "record.due > where.after"
    ),
    Mutant("purge takes what is held", STATE, 'if state == "leased":', "if False:"),
    Mutant(
        "a dry run forgets",
        CHANGING,
        "queue = store.look(command.queue)\n        held_count =",
        "queue = store.open(command.queue)\n        held_count =",
    ),
    Mutant(
        "next does not see leases",
        STATE,
        'due + [until for until, _, _ in islice(self.sets["leased"], 1)]',
        "due",
    ),
    Mutant(
        "any version will do",
        RECORD,
        "return if_version is None or self",
        "return if_version is not None or self",
    ),
    Mutant(
        "an edit stores what was not there",
        MEMORY,
        "elif command.stores_new:",
        'elif command.on_conflict != "revive":',
    ),
    Mutant(
        "one tick early",
        QUEUE,
        "row, due = self.row, delayed_reach(self.now)",
        "row, due = self.row, delayed_reach(self.now + 1)",
    ),
    Mutant(
        "a lapse one tick late",
        SQL,
        "l.until <= ? ORDER BY l.until, l.seq LIMIT ?;\n\n-- name: lapsed_whole",
        "l.until < ? ORDER BY l.until, l.seq LIMIT ?;\n\n-- name: lapsed_whole",
    ),
    Mutant("the token does not count", QUEUE, "!= [lease.token for lease in leases]", "== []"),
    Mutant(
        "a lease outlives its ack",
        SQL,
        "DELETE FROM bide_lease WHERE seq IN (SELECT value FROM json_each(?));",
        "DELETE FROM bide_lease WHERE seq IN (SELECT value FROM json_each(?) LIMIT 3);",
    ),
    Mutant("a change is not saved", QUEUE, "if old == new:", "if True:"),
    Mutant("a lease outlives its end", QUEUE, "self.run(SQL.drop_lease, (record.seq,))", "pass"),
    Mutant(
        "weights of one record are not remembered",
        QUEUE,
        "row.weighted or record.priority > 0",
        "row.weighted",
    ),
    Mutant(
        "a body that is wanted is not read", QUEUE, "with_bodies = int(bodies)", "with_bodies = 0"
    ),
    Mutant(
        "ids are numbers",
        SQL,
        "m.queue = ? AND m.id = j.value\n  LEFT",
        "m.queue = ? AND CAST(m.id AS REAL) = CAST(j.value AS REAL)\n  LEFT",
    ),
    Mutant(
        "ranks are text",
        SQL,
        "ORDER BY p.rank, p.seq LIMIT ?;\n\n-- name: nth_due",
        "ORDER BY CAST(p.rank AS TEXT), p.seq LIMIT ?;\n\n-- name: nth_due",
    ),
    Mutant(
        "ties are text",
        SQL,
        "ORDER BY p.rank, p.seq LIMIT ?;\n\n-- name: nth_due",
        "ORDER BY p.rank, CAST(p.seq AS TEXT) LIMIT ?;\n\n-- name: nth_due",
    ),
    Mutant(
        "promotion takes one too few",
        QUEUE,
        "due, limit - 1)).fetchone()",
        "due, limit - 2)).fetchone()",
    ),
    Mutant(
        "promotion takes one too many",
        QUEUE,
        "due, limit - 1)).fetchone()",
        "due, limit)).fetchone()",
    ),
    Mutant(
        "weights of many are not remembered",
        PUT,
        "has_priorities = has_priorities or item.priority > 0",
        "pass",
    ),
    Mutant("weights of one are not remembered", SQL, " AND weighted >= (NEW.priority > 0)", ""),
    Mutant(
        "a single put knows no version",
        PUT,
        "if command.if_version is not None or command.origin is not None:",
        "if command.origin is not None:",
    ),
    Mutant("a single put is not counted", READ, "row.put += sum(single_puts.values())", "pass"),
    Mutant(
        "a single put of another queue is not counted",
        SQL,
        "put = put + ?, delayed",
        "put = put + 0 * ?, delayed",
    ),
    Mutant(
        "a single put loses failures",
        PUT,
        "if item.attempt or item.failures:",
        "if item.attempt:",
    ),
    Mutant(
        "a single put loses a rule",
        PUT,
        'item.rule or "",',
        '"",',
    ),
    Mutant("a single put loses a run", PUT, 'item.run or "",', '"",'),
    Mutant(
        "a single put does not see what is kept",
        SQL,
        "NEW.queue AND kept = 0 AND weighted",
        "NEW.queue AND weighted",
    ),
    Mutant(
        "single puts of other queues are forgotten",
        SESSION,
        "self.run(SQL.count_puts, (total, total, id))",
        "pass",
    ),
    Mutant("single puts are counted twice", SESSION, "self.run(SQL.balance)", "pass"),
    Mutant(
        "what is late is leased among others",
        CLAIMING,
        "if is_closed or record.is_late(now):",
        "if is_closed:",
    ),
    Mutant(
        "claims deliver what is in closed groups",
        CLAIMING,
        "is_closed = has_closed and queue.facts.closed_until(record.group) is not None",
        "is_closed = False",
    ),
    Mutant(
        "weight only in a backlog",
        QUEUE,
        "READY if row.ready or row.weighted or",
        "READY if row.ready or",
    ),
    Mutant("any cursor will do", SCANNING, "if not begin.startswith(_BY_ID):", "if False:"),
    Mutant("kept ones are not counted", QUEUE, "row.kept -= len(rows)", "pass"),
    Mutant(
        "a rule reaches one too few",
        SQL,
        'm."group" = :group AND m.due >= :after',
        'm."group" = :group AND m.due > :after',
    ),
    Mutant(
        "a rule takes from all groups",
        SQL,
        'WHERE m.queue = :queue AND m."group" = :group AND m.due >= :after',
        "WHERE m.queue = :queue AND m.due >= :after",
    ),
    Mutant(
        "a rule takes what is held",
        SQL,
        "  AND NOT EXISTS (SELECT 1 FROM bide_lease l WHERE l.seq = m.seq)\n",
        "",
    ),
    Mutant(
        "names of queues are patterns",
        SQL,
        "substr(name, 1, length(:prefix)) = :prefix",
        "name LIKE :prefix || '%'",
    ),
    Mutant(
        "a forecast starts a tick late", READING, "PRIORITIES - :start)", "PRIORITIES - :start - 1)"
    ),
    Mutant(
        "bytes that are text come back as JSON",
        ROWS,
        'if item.failures else "",\n        item.data.decode() if item.json else',
        'if item.failures else "",\n'
        '        item.data.decode() if item.json or item.data == b"1" else',
    ),
    Mutant(
        "oldest is the weightiest", READ, "first_rank = (priority_number + 1) * STRIPE", "break"
    ),
    Mutant(
        "a page begins on its cursor",
        READING,
        "(p.rank, p.seq) > (:rank",
        "(p.rank, p.seq) >= (:rank",
    ),
    Mutant(
        "a batch is not undone",
        "sqlite/engine.py",
        "                self.unreturned = (), ()\n                connection.rollback()",
        "                self.unreturned = (), ()\n                connection.commit()",
    ),
    Mutant(
        "what was counted is not saved",
        QUEUE,
        "(values := row.values()) != self.values_before",
        "(values := row.values())[:10] != self.values_before[:10]",
    ),
]
