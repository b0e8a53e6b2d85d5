"""The commands of one transaction: executed, with the queues that they name."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest
from typing import cast

from bide.engines.execution.changing import change_each, reopening
from bide.engines.execution.commands import answer_again, execute
from bide.engines.sqlite.put import put_all, put_one, together
from bide.engines.sqlite.queue_state import SqliteQueue
from bide.engines.sqlite.senders import Senders
from bide.engines.sqlite.tables import SQL, empty, json_text
from bide.engines.sqlite.transaction import Transaction
from bide.model.command_identity import Identities, Identity
from bide.model.commands import Ack, Command, Lease, Put
from bide.model.ended import end_of
from bide.model.errors import OutcomeUnknown
from bide.model.replies import Outcome, Outcomes, Reply, expect


class Session(Transaction):
    """Executes commands in an open transaction; `save` has to follow.

    Args:
        connection: to the file.
        now: the time in milliseconds, perhaps with fractions.
    """

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        super().__init__(connection, now)
        self._queues: dict[str, SqliteQueue] = {}
        self._senders: Senders | None = None

    def carry_out(
        self, commands: Sequence[Command], identities: Identities = None
    ) -> Sequence[Reply | OutcomeUnknown]:
        """Execute commands, each with an identity once; return the outcome of each.

        New commands are gathered, so that many puts run as one. They are executed before a
        remembered answer is read, which may depend on them.
        """
        if identities is None:
            return self._carry_out(commands)
        senders = self._senders = Senders(self.run, self.now)
        outcomes: dict[int, Reply | OutcomeUnknown] = {}  # by the place of the command
        new: dict[int, Identity | None] = {}  # those to be executed together, likewise
        new_keys: set[tuple[str, int, int]] = set()  # sender, number and place of each of these

        def execute_new() -> None:
            replies = self._carry_out_new([commands[place] for place in new])
            for (place, identity), reply in zip(new.items(), replies, strict=True):
                outcomes[place] = reply
                if identity is not None:
                    senders.remember(identity, reply)
            new.clear()
            new_keys.clear()

        for place, identity in enumerate(identities):
            if identity is not None:
                key = identity.sender, identity.number, identity.place
                if key in new_keys:  # it was sent twice, and both have come together
                    execute_new()
                new_keys.add(key)
                try:
                    kept = senders.recall(identity)
                except OutcomeUnknown as unknown:
                    outcomes[place] = unknown
                    continue
                if kept is not None:
                    execute_new()
                    outcomes[place] = answer_again(self, commands[place].queue, kept)
                    continue
            new[place] = identity
        execute_new()
        return [outcomes[place] for place in range(len(commands))]

    def _carry_out_new(self, commands: Sequence[Command]) -> list[Reply]:
        """Execute commands; a simple put that is alone by one statement."""
        reply: Reply | None = None
        if len(commands) == 1 and type(commands[0]) is Put and not self._queues:
            reply = put_one(self.run, commands[0], self.now)
        return self._carry_out(commands) if reply is None else [reply]

    def _carry_out(self, commands: Sequence[Command]) -> list[Reply]:
        """Execute commands; consecutive puts of a kind together."""
        if len(commands) == 1:
            return [execute(self, commands[0])]
        replies: list[Reply] = []
        for stores_new, consecutive in groupby(commands, together):
            if stores_new is not None:
                replies += self._put_all(cast("list[Put]", [*consecutive]), stores_new=stores_new)
            else:
                replies += [execute(self, command) for command in consecutive]
        return replies

    # Queues.

    def look(self, name: str) -> SqliteQueue:
        """Return a queue as it is."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = SqliteQueue(self, name)
        return queue

    def open(self, name: str) -> SqliteQueue:
        """Return a queue that is going to be changed; first forget what was kept long enough."""
        queue = self.look(name)
        queue.forget()
        return queue

    def make(self, name: str) -> SqliteQueue:
        """Return a queue that is going to be changed, made if it did not exist."""
        queue = self.open(name)
        if not queue.row.id:
            self.run(SQL.create_queue, (name, self.now))
            queue = self._queues[name] = SqliteQueue(self, name)
        return queue

    def drop(self, queue: SqliteQueue) -> None:
        """Delete the row of a queue that is empty."""
        tables = "limit", "group", "line", "due_hour", "pause", "forwarded", "ended", "closed"
        empty(self.run, queue.row.id, *tables)
        self.run(SQL.drop_queue, (queue.row.id,))
        del self._queues[queue.row.name]

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues, sorted."""
        return [name for (name,) in self.run(SQL.queue_names, {"prefix": prefix})]

    def save(self) -> None:
        """Write back what has changed in the rows of queues, with what single puts have added."""
        if self._senders is not None:
            self._senders.save()
        if self._single_puts is None:  # no row was read
            return
        for id, counts in self._single_puts.items():  # of queues that no command has named
            total = sum(counts.values())
            self.run(SQL.count_puts, (total, total, id))
            self._save_hours(id, counts)
        for queue in self._queues.values():
            queue.save_row()
            self._save_hours(queue.row.id, queue.changed_hours)
        if self.has_uncounted:
            self.run(SQL.balance)

    def _save_hours(self, queue: int, changes: Mapping[int, int]) -> None:
        """Write the changes to the counters of hours of a queue."""
        rows = [(queue, hour, count) for hour, count in changes.items() if count]
        if not rows:
            return
        self.run_many(SQL.count_hour, rows)
        if decreased := [(queue, hour) for queue, hour, count in rows if count < 0]:
            self.run_many(SQL.drop_hour, decreased)  # where the counter is 0 now

    # Commands that have statements for many messages.

    def put(self, command: Put) -> Outcomes:
        """Store messages."""
        (reply,) = self._put_all([command], stores_new=bool(together(command)))
        return expect(Outcomes, reply)

    def _put_all(self, puts: Sequence[Put], *, stores_new: bool) -> list[Reply]:
        """Execute consecutive puts together."""
        self.has_uncounted = self.has_uncounted or stores_new
        return put_all(self.make, puts, stores_new=stores_new)

    def ack(self, command: Ack) -> Outcomes:
        """Delete messages, or keep them if the queue does.

        If all are simply deleted, a few statements do it; else the rules decide one by one.
        """
        queue = self.open(command.queue)
        seqs = _all_held(queue, command.leases)
        if not seqs:
            return change_each(queue, command, command.leases)
        row = queue.row
        if row.remembers:
            results = command.results if row.result_ttl else []
            texts = [None if result is None else result.decode() for result in results]
            rows = json_text(list(zip_longest(seqs, texts)))
            bounds = {"rows": rows, "now": self.now, "history": bool(row.history)}
            row.ended += self.run(SQL.remember_acked, bounds).rowcount
        if row.result_ttl:  # a caller may wait for the result
            self.ends += [end_of(row.name, lease.id) for lease in command.leases]
        queue.end_leases(seqs)
        row.acked += len(seqs)
        outcomes = [Outcome(lease.id, True) for lease in command.leases]
        return Outcomes(outcomes, min(reopening(queue), default=None))


def _all_held(queue: SqliteQueue, leases: Sequence[Lease]) -> list[int]:
    """Return the messages of leases if all are good and their acks delete them; else none."""
    ids = [lease.id for lease in leases]
    if queue.row.keep or queue.row.successors or len(set(ids)) < len(ids):
        return []
    rows = queue.run(SQL.held, (json_text(ids), queue.row.id, queue.now)).fetchall()
    if [token for _, token in rows] != [lease.token for lease in leases]:
        return []
    return [seq for seq, _ in rows]
