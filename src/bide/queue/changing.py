"""Change messages that no worker holds, and the settings of a queue."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

import msgspec
from msgspec import UNSET, UnsetType

from bide.lane.steps import Steps
from bide.model.commands import Cancel, Purge, Reschedule, Scan
from bide.model.errors import InvalidArgument
from bide.model.limits import BULK
from bide.model.message import Message, State
from bide.model.parts import in_parts
from bide.model.replies import Affected, Outcome, Outcomes, Page, Settings
from bide.model.times import Duration, Moment, Rate
from bide.queue.arguments import one_or_several
from bide.queue.command_builder import CommandBuilder
from bide.queue.dry_run import look_at_dead, look_at_purge
from bide.queue.put_and_settle import PutAndSettle, outcomes_of
from bide.queue.results import following
from bide.undoing.changes import Undoable, bulk_of, check_undo


def unheld(messages: Iterable[Message]) -> list[str]:
    """Return the ids of the messages that no worker holds and that still are to be delivered."""
    return [message.id for message in messages if message.state in ("delayed", "ready")]


def repeated(command: Cancel | Purge) -> Steps[int]:
    """Repeat a command by rule until no message matches; return how many it changed."""
    count = 0
    while True:
        reply: Affected = yield command
        count += reply.count
        if not reply.more:
            return count


def _rescheduling(command: Reschedule, first: Scan) -> Steps[int]:
    """Reschedule what no worker holds of a scan, page by page; return how many were changed."""
    scan: Scan | None = first
    count = 0
    while scan is not None:
        page: Page = yield scan
        if ids := unheld(page.messages):
            reply: Outcomes = yield msgspec.structs.replace(command, ids=ids)
            count += sum(map(bool, reply.outcomes))
        scan = following(scan, page)
    return count


def _check_no_rule(
    group: str | None, after: Moment | None, before: Moment | None, dry_run: bool
) -> None:
    if dry_run or not (group is None and after is None and before is None):
        raise InvalidArgument(
            "name one message by its id, or several by group=, after= and before=, not both"
        )


def _reviving(
    builder: CommandBuilder, ids: Iterable[str] | None, delay: Duration
) -> Steps[list[Outcome]]:
    """Revive dead letters, a thousand at a time; without ids, all."""
    command = builder.revive([], delay)  # checks the delay, even if none is dead
    chosen = [] if ids is None else one_or_several(ids)
    scan = builder.scan("dead", None, None, None, 500) if ids is None else None
    while scan is not None:
        page: Page = yield scan
        chosen += [message.id for message in page.messages]
        scan = following(scan, page)
    parts = [msgspec.structs.replace(command, ids=part) for part in in_parts(chosen)]
    return (yield from outcomes_of(*parts))


class Changes(PutAndSettle):
    """The methods that change messages and settings."""

    @overload
    def cancel(
        self,
        id: str,
        *,
        if_due: Moment | None = None,
        if_version: str | None = None,
        within: object = None,
    ) -> Outcome: ...
    @overload
    def cancel(
        self,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
        within: object = None,
    ) -> int: ...
    @overload
    def cancel(
        self,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        undo: Literal[True],
    ) -> Undoable: ...
    def cancel(
        self,
        id: str | None = None,
        *,
        if_due: Moment | None = None,
        if_version: str | None = None,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
        undo: bool = False,
        within: object = None,
    ) -> Outcome | int | Undoable:
        """Cancel a message that no worker holds; or all of a group, or of a time span.

        By id, the successor of a message that a worker holds (see `put`, `latest`) is removed; by
        group or span it stays.

        Args:
            id: of the message.
            if_due: only if this is still its due time.
            if_version: only the version that you saw, by its `Message.version`.
            group: instead of an id: all messages of this group that no worker holds,
            after: and that are due at this time or later,
            before: and that are due before this time.
            dry_run: only count them.
            undo: by group or span: let it be taken back for ten minutes, see `undo`.
            within: as for `put`.

        Returns:
            By id an `Outcome`: true if the message is gone for good, else it says where it is;
            through an outbox it is pending: neither true nor false. By group or span, how many were
            cancelled, 1,000 in each commit; with `undo`, 500, and the number has the token to take
            it back.
        """
        if id is not None:
            _check_no_rule(group, after, before, dry_run)
            command = self._builder.cancel([id], if_due, if_version)
            check_undo(undo, False, dry_run, within)
            return self._one(command, within)
        if if_due is not None or if_version is not None:
            raise InvalidArgument("if_due= and if_version= are for one message: name its id")
        command = self._builder.cancel_where(group, after, before, dry_run)
        check_undo(undo, True, dry_run, within)
        if undo:
            return self._bulk(bulk_of(command))
        return self._run(repeated(command), within=within)

    def cancel_many(self, ids: Iterable[str]) -> list[Outcome]:
        """Cancel messages by id, with one commit. One outcome per id, as for `cancel`."""
        return self._run(outcomes_of(self._builder.cancel(ids, None)))

    @overload
    def reschedule(
        self,
        id: str,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        if_due: Moment | None = None,
        if_version: str | None = None,
        within: object = None,
    ) -> Outcome: ...
    @overload
    def reschedule(
        self,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        group: str,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
    ) -> int: ...
    @overload
    def reschedule(
        self,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        group: str,
        after: Moment | None = None,
        before: Moment | None = None,
        undo: Literal[True],
    ) -> Undoable: ...
    def reschedule(
        self,
        id: str | None = None,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        if_due: Moment | None = None,
        if_version: str | None = None,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
        undo: bool = False,
        within: object = None,
    ) -> Outcome | int | Undoable:
        """Change when a message is due that no worker holds; or when those of a group are.

        Args:
            id: of the message.
            delay: how long from now until it is due.
            at: the due time instead.
            if_due, if_version: as for `cancel`.
            group: instead of an id: all messages of this group that no worker holds,
            after: and that are due at this time or later,
            before: and that are due before this time.
            dry_run: only count them.
            undo: of a group: as for `cancel`.
            within: as for `put`, by id.

        Returns:
            By id an `Outcome`: true if it was changed, else it says where the message is. By group,
            how many were changed, up to 1,000 in each commit; messages that join the group
            meanwhile may be left out.
        """
        if id is not None:
            _check_no_rule(group, after, before, dry_run)
            command = self._builder.reschedule([id], delay, at, if_due, if_version)
            check_undo(undo, False, dry_run, within)
            return self._one(command, within)
        if group is None:
            raise InvalidArgument("reschedule needs to know what: an id, or group=")
        if if_due is not None or if_version is not None or within is not None:
            raise InvalidArgument("if_due=, if_version= and within= are for one message: name it")
        command = self._builder.reschedule([], delay, at, None)
        check_undo(undo, True, dry_run, within)
        if undo:
            return self._bulk(bulk_of(command, self._builder.where(group, after, before)))
        if dry_run:
            return self._run(repeated(self._builder.cancel_where(group, after, before, dry_run)))
        scan = self._builder.scan(None, group, after, before, BULK)
        return self._run(_rescheduling(command, scan))

    def edit(
        self,
        id: str,
        *,
        body: Any = UNSET,
        priority: int | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        attempts: int | UnsetType = UNSET,
        group: str | UnsetType | None = UNSET,
        headers: Mapping[str, str] | UnsetType | None = UNSET,
        delay: Duration | None = None,
        at: Moment | None = None,
        if_version: str | None = None,
    ) -> Outcome:
        """Change fields of a message that no worker holds: delayed, ready or dead.

        All else stays: the due time, the attempts made, the failures, and a dead letter stays dead.

        Args:
            id: of the message.
            body: any JSON value, or bytes.
            priority, attempts: as for `put`.
            expires, group, headers: as for `put`; `None` takes them away.
            delay: how long from now until it is due; not of a dead letter, see `revive`.
            at: the due time instead.
            if_version: only the version that you saw, by its `Message.version`.

        Returns:
            The outcome: true if it was changed, else it says where the message is.

        Example:
            >>> import bide
            >>> orders = bide.Queue("edited", "memory://")
            >>> outcome = orders.put({"order": 42}, id="order-42", group="shop", delay="1h")
            >>> bool(orders.edit("order-42", priority=5, group=None))
            True
        """
        command = self._builder.edit(
            [id],
            body,
            delay,
            at,
            if_version,
            priority=priority,
            expires=expires,
            attempts=attempts,
            group=group,
            headers=headers,
        )
        return self._one(command)

    @overload
    def revive(self, ids: Iterable[str] | None = None, *, delay: Duration = 0) -> list[Outcome]: ...
    @overload
    def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, undo: Literal[True]
    ) -> Undoable: ...
    @overload
    def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, dry_run: Literal[True]
    ) -> int: ...
    def revive(
        self,
        ids: Iterable[str] | None = None,
        *,
        delay: Duration = 0,
        undo: bool = False,
        dry_run: bool = False,
    ) -> list[Outcome] | int | Undoable:
        """Return dead letters (by default all) to the queue, due after `delay`.

        They get all their attempts again. With `undo` it can be taken back, see `undo`; returns how
        many then. With `dry_run` it only counts them.
        """
        check_undo(undo, True, dry_run, None)
        if not undo and not dry_run:
            return self._run(_reviving(self._builder, ids, delay))
        bulk = self._builder.revive_bulk(ids, delay)
        if undo:
            return self._bulk(bulk)
        return self._run(look_at_dead(self.name, bulk.ids))

    @overload
    def purge(
        self, *, state: State, before: Moment | None = None, dry_run: bool = False
    ) -> int: ...
    @overload
    def purge(
        self, *, state: State, before: Moment | None = None, undo: Literal[True]
    ) -> Undoable: ...
    def purge(
        self,
        *,
        state: State,
        before: Moment | None = None,
        undo: bool = False,
        dry_run: bool = False,
    ) -> int | Undoable:
        """Delete the messages of a state, 1,000 in each commit. Returns how many.

        Args:
            state: delayed, ready or dead; acked or expired: forget these messages and their ids.
            before: only those that entered the state (delayed, ready: are due) before this time.
            undo: let it be taken back for ten minutes, see `undo`; not for acked and expired ones.
                Delayed and ready messages count as cancelled then.
            dry_run: only count them. With `before`, and for acked and expired ones, it reads all
                messages of the state.
        """
        command = self._builder.purge(state, before)
        check_undo(undo, True, dry_run, None)
        if dry_run:
            return self._run(look_at_purge(command))
        if undo:
            return self._bulk(bulk_of(command))
        return self._run(repeated(command))

    def configure(
        self,
        *,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
    ) -> Settings:
        """Change settings of the queue, for all who use it; 0 switches one off.

        Args:
            keep: how long acked messages are remembered, so that their ids are refused.
            history: how long the queue remembers how messages ended, by whom, and their attempts.
                Their ids are free.
            result_ttl: how long it remembers the results of messages.
            limit: how many messages of the queue may be leased at a time, over all workers.
            rate: how many may be delivered: per second, or a string such as "100/m". In any span
                of `w` seconds at most `rate * (w + 0.01) + 1` are.
            group_limit: `limit` for each group; messages without a group are not bound by it.
            group_rate: `rate` for each group.

        With any of the last four, groups take turns, and priority decides within a group.

        Returns:
            All settings: times in milliseconds, a rate as its interval in microseconds.

        Example:
            >>> import bide
            >>> calls = bide.Queue("calls", "memory://")
            >>> calls.configure(rate="100/m", group_limit=1).rate
            600000
        """
        command = self._builder.settings(
            keep=keep,
            history=history,
            result_ttl=result_ttl,
            limit=limit,
            rate=rate,
            group_limit=group_limit,
            group_rate=group_rate,
        )
        return self._do(command)
