"""Queues that know Django's transactions."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.db import connections, transaction

import bide
from bide.contrib.django.conf import configuration, has_outbox, in_database, store_url
from bide.engines.port import Guest
from bide.engines.registry import absolute, lives_alone
from bide.lane.shared import close_lane, open_lane
from bide.logs import logger
from bide.model.commands import Cancel, Command, Put, Reschedule
from bide.model.errors import InvalidArgument
from bide.model.recovery import Recovered, Recovery
from bide.model.replies import Reply
from bide.model.undoing import Undoable, Undone
from bide.outbox.rows import pending, timed
from bide.queue.arguments import check_joins
from bide.queue.base import BaseQueue
from bide.queue.results import Imported

_log = logger("bide.django")


class OfSettings(BaseQueue):
    """A queue in the store of the settings. While Django's tests run, that is another one."""

    def _default_url(self) -> str:
        return store_url()

    def _follow_settings(self) -> None:
        """Go to the store that the settings name now: with the tests it changes."""
        if self._names_store or self._closed:
            return
        url = store_url()
        if url == self._url:
            return
        old_lane = self._lane
        self._url, self._absolute_url = url, absolute(url)
        self._use(open_lane(url, self._own_clock))
        close_lane(old_lane)


class Queue(OfSettings, bide.Queue):
    """A `bide.Queue` in the store of the setting `BIDE`, which joins Django's transactions.

    Inside `transaction.atomic`, `put`, `cancel` and `reschedule` are part of the transaction:

    - If the store lives in that database, they join it.
    - Else, if `bide.contrib.django.outbox` is installed, they are written to the outbox.
    - Else they are done right after the commit; a process that dies in between loses them.

    In the last two cases the outcome's `state` is "pending", and it is neither true nor false. With
    `within=False` a call is done at once and survives a rollback. Outside of a transaction every
    call is done at once. Changes with `undo=True`, `undo` and `load` are refused in a transaction.

    Args:
        name: of the queue.
        url: of another store; by default the one of the settings.
        keep: how long acked messages are remembered, so that their ids are refused. This and the
            next seven are settings of the queue, which the first command stores for all who use it.
        history: how long the queue remembers how messages ended, by whom, and their attempts.
        result_ttl: how long it remembers the results of messages.
        limit: how many messages of the queue may be leased at a time, over all workers.
        rate: how many may be delivered: per second, or a string such as "100/m".
        group_limit: `limit` for each group.
        group_rate: `rate` for each group.
        overdue: what becomes of what is overdue after a gap without claims, such as
            "spread 10m"; see `bide.model.recovery`.
        max_body: how many bytes an encoded body may take.
        holder: by what name this worker is known to others; its host and process by default.
        actor: who changes messages and settings; `holder` by default.
        clock: for tests; see `bide.testing.FakeClock`.
    """

    def _execute(
        self,
        command: Command,
        result_of: Callable[[Any], Any] | None = None,
        *,
        wait: float | None = None,
        within: object = None,
    ) -> Any:
        """Execute a command, in the open transaction of Django if there is one that it can join."""
        self._follow_settings()
        if within is not None or not _can_join(command) or not self._joins():
            # `within=False` is at once, as no `within` is for a `bide.Queue`.
            return super()._execute(command, result_of, wait=wait, within=within or None)
        alias = configuration().database
        if in_database(self._url, alias) or has_outbox():
            return super()._execute(command, result_of, wait=wait, within=connections[alias])
        reply = self._after_commit(command, alias)
        return reply if result_of is None else result_of(reply)

    def load(self, lines: Iterable[str | bytes]) -> Imported:
        """Put the messages of an `export`, outside of a transaction; see `bide.Queue.load`."""
        self._refuse_in_transaction("load()")
        return super().load(lines)

    def undo(self, undo: str) -> Undone:
        """Take back a bulk change, outside of a transaction; see `bide.Queue.undo`."""
        self._refuse_in_transaction("undo()")
        return super().undo(undo)

    def _undoable(self, *args: Any, **options: Any) -> Undoable:
        self._refuse_in_transaction("a change with undo=True")
        return super()._undoable(*args, **options)

    def _recovered(self, plan: Recovery, dry_run: bool) -> Recovered:
        if not dry_run:
            self._refuse_in_transaction("recover()")
        return super()._recovered(plan, dry_run)

    def _refuse_in_transaction(self, what: str) -> None:
        """Refuse what is more than puts, cancels and reschedules of messages that wait.

        Args:
            what: the call, for the error.

        Raises:
            InvalidArgument: there is a transaction.
        """
        self._follow_settings()
        if self._joins():
            raise InvalidArgument(
                f"{what} cannot be part of a transaction; call it outside of transaction.atomic "
                "(and of ATOMIC_REQUESTS)"
            )

    def _joins(self) -> bool:
        """Tell whether there is a transaction that changes are to join."""
        if not _in_transaction(connections[configuration().database]):
            return False
        is_of_tests = self._lane.stands_in or lives_alone(self._url)
        return not is_of_tests

    def _guest(self, command: Command, within: object) -> Guest | None:
        """Return what writes to the user's connection: the store in it, or the outbox."""
        alias = configuration().database
        guest = super()._guest(command, within)
        # Equal, not identical: `django.db.connection` is a proxy.
        if guest is None or within != connections[alias] or in_database(self._url, alias):
            return guest
        return self._outbox(command, within)

    def _after_commit(self, command: Command, alias: str) -> Reply:
        """Do it once the transaction has been committed."""
        check_joins(command)
        (fixed,) = timed([command], self._now())
        transaction.on_commit(partial(self._committed, fixed), using=alias)
        return pending(fixed)

    def _committed(self, command: Command) -> None:
        """Execute a command after the commit. No caller gets its outcomes: refusals are logged."""
        reply = super()._execute(command)
        outcomes = [command.worded_outcome(outcome) for outcome in reply.outcomes]
        # "stopping" is no refusal: the worker was asked to stop.
        refused = [
            str(outcome) for outcome in outcomes if outcome.state != "stopping" and not outcome
        ]
        if refused:
            _log.warning("after the commit, in %s: %s", self.name, "; ".join(refused))


class AsyncQueue(OfSettings, bide.AsyncQueue):
    """A `bide.AsyncQueue` in the store of the setting `BIDE`.

    Django has no transactions in async code: what must join one goes through `Queue` inside
    `sync_to_async`.

    Args:
        name: of the queue.
        url: of another store; by default the one of the settings.
        keep: how long acked messages are remembered, so that their ids are refused. This and the
            next seven are settings of the queue, which the first command stores for all who use it.
        history: how long the queue remembers how messages ended, by whom, and their attempts.
        result_ttl: how long it remembers the results of messages.
        limit: how many messages of the queue may be leased at a time, over all workers.
        rate: how many may be delivered: per second, or a string such as "100/m".
        group_limit: `limit` for each group.
        group_rate: `rate` for each group.
        overdue: what becomes of what is overdue after a gap without claims, such as
            "spread 10m"; see `bide.model.recovery`.
        max_body: how many bytes an encoded body may take.
        holder: by what name this worker is known to others; its host and process by default.
        actor: who changes messages and settings; `holder` by default.
        clock: for tests; see `bide.testing.FakeClock`.
    """

    async def _execute(self, command: Command, *more: Any, **options: Any) -> Any:
        self._follow_settings()
        return await super()._execute(command, *more, **options)


def group_of(instance: Any) -> str:
    """Return the group of the messages that concern a model instance, such as "shop.order:42".

    Put messages with `group=group_of(order)`, and `PendingMessages` shows them in the admin.

    Raises:
        ValueError: the instance was not saved, so that it has no primary key yet.
    """
    if instance.pk is None:
        raise ValueError(f"{instance!r} has no primary key yet: save it first")
    return f"{instance._meta.label_lower}:{instance.pk}"


def _can_join(command: Command) -> bool:
    """Tell whether a command may be part of a transaction; a dry run only reads."""
    return type(command) in (Put, Cancel, Reschedule) and not command.only_reads


def _in_transaction(connection: Any) -> bool:
    """Tell whether a transaction is open, or would be opened by the next statement."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit
