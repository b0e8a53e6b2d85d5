"""Change messages that no worker holds: cancel, reschedule, edit."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

import msgspec
from msgspec import UNSET, UnsetType

from bide.lane.steps import Steps
from bide.model.commands import Cancel, Purge, Reschedule
from bide.model.limits import BULK
from bide.model.message import Message
from bide.model.replies import Affected, Outcome, Outcomes, Page
from bide.model.times import Duration, Moment
from bide.queue.command_builder import CommandBuilder
from bide.queue.undoing.faces import AsyncUndo, BlockingUndo, Undoable, bulk_of, check_undo


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


def _rescheduling(
    builder: CommandBuilder, command: Reschedule, dry_run: bool, group: str | None,
    after: Moment | None, before: Moment | None,
) -> Steps[int]:  # fmt: skip
    """Reschedule what no worker holds by a rule, a page at a time; return how many were changed."""
    if dry_run:
        counted: Affected = yield builder.cancel_where(group, after, before, dry_run=True)
        return counted.count
    scan = builder.scan(None, group, after, before, BULK)
    count = 0
    while True:
        page: Page = yield scan
        if ids := unheld(page.messages):
            reply: Outcomes = yield msgspec.structs.replace(command, ids=ids)
            count += sum(map(bool, reply.outcomes))
        if page.cursor is None:
            return count
        scan = msgspec.structs.replace(scan, cursor=page.cursor)


class BlockingChanges(BlockingUndo):
    """The methods of `Queue` that change messages."""

    @overload
    def cancel(
        self, id: str, *, if_due: Moment | None = None, if_version: str | None = None,
        within: object = None,
    ) -> Outcome: ...  # fmt: skip
    @overload
    def cancel(
        self, *, group: str | None = None, after: Moment | None = None,
        before: Moment | None = None, dry_run: bool = False, within: object = None,
    ) -> int: ...  # fmt: skip
    @overload
    def cancel(
        self, *, group: str | None = None, after: Moment | None = None,
        before: Moment | None = None, undo: Literal[True],
    ) -> Undoable: ...  # fmt: skip
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
    ) -> Outcome | int:
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
            By id an `Outcome`: true if the message is gone for good, else it says where it is. By
            group or span, how many were cancelled, 1,000 in each commit; with `undo`, 500, and
            the number has the token to take it back.
        """
        command = self._builder.cancel_by(
            id, if_due, if_version, group=group, after=after, before=before, dry_run=dry_run
        )
        check_undo(undo, id is None, dry_run, within)
        if undo:
            return self._bulk(bulk_of(command))
        if id is None:
            return self._run(repeated(command), within)
        return self._do(Outcomes, command, within=within).outcomes[0]

    def cancel_many(self, ids: Iterable[str]) -> list[Outcome]:
        """Cancel messages by id, with one commit. One outcome per id, as for `cancel`."""
        return self._do(Outcomes, self._builder.cancel(ids, None)).outcomes

    @overload
    def reschedule(
        self, id: str, *, delay: Duration | None = None, at: Moment | None = None,
        if_due: Moment | None = None, if_version: str | None = None, within: object = None,
    ) -> Outcome: ...  # fmt: skip
    @overload
    def reschedule(
        self, *, delay: Duration | None = None, at: Moment | None = None, group: str,
        after: Moment | None = None, before: Moment | None = None, dry_run: bool = False,
    ) -> int: ...  # fmt: skip
    @overload
    def reschedule(
        self, *, delay: Duration | None = None, at: Moment | None = None, group: str,
        after: Moment | None = None, before: Moment | None = None, undo: Literal[True],
    ) -> Undoable: ...  # fmt: skip
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
    ) -> Outcome | int:
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
        command = self._builder.reschedule_by(
            id, delay, at, if_due, if_version, group=group, after=after, before=before,
            dry_run=dry_run, within=within,
        )  # fmt: skip
        check_undo(undo, id is None, dry_run, within)
        if id is not None:
            return self._do(Outcomes, command, within=within).outcomes[0]
        if undo:
            where = self._builder.where(group, after, before)
            return self._bulk(bulk_of(command, where))
        steps = _rescheduling(self._builder, command, dry_run, group, after, before)
        return self._run(steps)

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
            [id], body, delay, at, if_version, priority=priority, expires=expires,
            attempts=attempts, group=group, headers=headers,
        )  # fmt: skip
        return self._do(Outcomes, command).outcomes[0]


class AsyncChanges(AsyncUndo):
    """The methods of `AsyncQueue` that change messages."""

    @overload
    async def cancel(
        self, id: str, *, if_due: Moment | None = None, if_version: str | None = None,
        within: object = None,
    ) -> Outcome: ...  # fmt: skip
    @overload
    async def cancel(
        self, *, group: str | None = None, after: Moment | None = None,
        before: Moment | None = None, dry_run: bool = False, within: object = None,
    ) -> int: ...  # fmt: skip
    @overload
    async def cancel(
        self, *, group: str | None = None, after: Moment | None = None,
        before: Moment | None = None, undo: Literal[True],
    ) -> Undoable: ...  # fmt: skip
    async def cancel(
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
    ) -> Outcome | int:
        """Async form of `Queue.cancel`."""
        command = self._builder.cancel_by(
            id, if_due, if_version, group=group, after=after, before=before, dry_run=dry_run
        )
        check_undo(undo, id is None, dry_run, within)
        if undo:
            return await self._bulk(bulk_of(command))
        if id is None:
            return await self._run(repeated(command), within)
        return (await self._do(Outcomes, command, within=within)).outcomes[0]

    async def cancel_many(self, ids: Iterable[str]) -> list[Outcome]:
        """Async form of `Queue.cancel_many`."""
        return (await self._do(Outcomes, self._builder.cancel(ids, None))).outcomes

    @overload
    async def reschedule(
        self, id: str, *, delay: Duration | None = None, at: Moment | None = None,
        if_due: Moment | None = None, if_version: str | None = None, within: object = None,
    ) -> Outcome: ...  # fmt: skip
    @overload
    async def reschedule(
        self, *, delay: Duration | None = None, at: Moment | None = None, group: str,
        after: Moment | None = None, before: Moment | None = None, dry_run: bool = False,
    ) -> int: ...  # fmt: skip
    @overload
    async def reschedule(
        self, *, delay: Duration | None = None, at: Moment | None = None, group: str,
        after: Moment | None = None, before: Moment | None = None, undo: Literal[True],
    ) -> Undoable: ...  # fmt: skip
    async def reschedule(
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
    ) -> Outcome | int:
        """Async form of `Queue.reschedule`."""
        command = self._builder.reschedule_by(
            id, delay, at, if_due, if_version, group=group, after=after, before=before,
            dry_run=dry_run, within=within,
        )  # fmt: skip
        check_undo(undo, id is None, dry_run, within)
        if id is not None:
            return (await self._do(Outcomes, command, within=within)).outcomes[0]
        if undo:
            where = self._builder.where(group, after, before)
            return await self._bulk(bulk_of(command, where))
        steps = _rescheduling(self._builder, command, dry_run, group, after, before)
        return await self._run(steps)

    async def edit(
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
        """Async form of `Queue.edit`."""
        command = self._builder.edit(
            [id], body, delay, at, if_version, priority=priority, expires=expires,
            attempts=attempts, group=group, headers=headers,
        )  # fmt: skip
        return (await self._do(Outcomes, command)).outcomes[0]
