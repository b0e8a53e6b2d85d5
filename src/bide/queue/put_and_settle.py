"""The methods of a queue that put messages and settle deliveries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from bide.lane.steps import Steps
from bide.model.commands import Command, Put
from bide.model.message import ATTEMPTS, NewMessage
from bide.model.replies import Outcome
from bide.model.times import Duration, Moment
from bide.queue.arguments import OnConflict
from bide.queue.base import BaseQueue
from bide.queue.delivery import Held, leases


def outcomes_of(*commands: Command) -> Steps[list[Outcome]]:
    """Execute commands; return all their outcomes."""
    outcomes: list[Outcome] = []
    for command in commands:
        outcomes += (yield command).outcomes
    return outcomes


def putting(queue: BaseQueue, command: Put) -> Steps[list[Outcome]]:
    """Put messages, of which there may be none; return the outcomes."""
    if not command.items and queue._closed:
        raise queue._was_closed()
    return (yield from outcomes_of(command)) if command.items else []


def settling(deliveries: Sequence[Held[Any]], command: Command) -> Steps[list[Outcome]]:
    """Settle deliveries; return the outcomes."""
    outcomes = yield from outcomes_of(command)
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        delivery.settled = delivery.settled or outcome.done
    return outcomes


class PutAndSettle(BaseQueue):
    """The methods that put messages and settle deliveries."""

    def put(
        self,
        body: Any,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        id: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_conflict: OnConflict | Literal["raise"] = "keep",
        if_version: str | None = None,
        latest: Duration | None = None,
        within: object = None,
    ) -> Outcome:
        """Store a message until it is due. Once this returns, the message is safe.

        Args:
            body: any JSON value, or bytes; or a `NewMessage`, which has its own options.
            delay: how long from now until it is due: seconds, a `timedelta`, or "1h30m".
            at: the due time instead: an aware `datetime`, or Unix seconds. A time in the past is
                due at once, as is a message with neither.
            id: your own name for it, 1 to 512 bytes; generated when missing.
            priority: 0 to 255; among due messages, higher goes first.
            expires: how long after its due time it is still worth delivering.
            attempts: how often it is delivered at most before it becomes a dead letter.
            group: a name that several messages share, to cancel them together.
            headers: text that travels beside the body.
            on_conflict: if the id exists: "keep" the message, "replace" it unless a worker holds
                it, or "raise".
            if_version: with "replace": only the message that you saw, by its `Message.version`.
            latest: with "replace", an id and `delay`: each put of the id moves its due time, but
                never to later than this after the first put since the id was free. If a worker
                holds the message, what you put follows it when the lease ends (debounce).
            within: your connection to the store's own database; the message joins its transaction.
                If the store is elsewhere, the put waits in an outbox in that database.

        Returns:
            The outcome: `id`, `due`, and whether it was stored; if not, the state of the message
            that exists. Through an outbox it is pending: neither true nor false.

        Raises:
            InvalidArgument: an argument is invalid; the error names it, the reason and the fix.
            AlreadyExists: the id exists, with `on_conflict="raise"`.
            WrongConnection: `within` is to another database, or has no transaction.
        """
        message = NewMessage(
            body,
            delay=delay,
            at=at,
            id=id,
            priority=priority,
            expires=expires,
            attempts=attempts,
            group=group,
            headers=headers,
            latest=latest,
        )
        command = self._builder.put_one(message, on_conflict, if_version)
        return self._one(command, within, new=on_conflict == "raise")

    def put_many(
        self,
        messages: Iterable[Any],
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        on_conflict: OnConflict = "keep",
        within: object = None,
    ) -> list[Outcome]:
        """Store many messages with one commit: all of them or, if that fails, none.

        Args:
            messages: `NewMessage` objects, each with its own options, or plain bodies.
            delay, at, priority, expires, attempts, group: of plain bodies, as for `put`.
            on_conflict: if an id exists: "keep" or "replace".
            within: as for `put`.

        Returns one outcome per message, in their order.
        """
        shared = NewMessage(
            body=None,
            delay=delay,
            at=at,
            priority=priority,
            expires=expires,
            attempts=attempts,
            group=group,
        )
        command = self._builder.put_many(messages, shared, on_conflict)
        return self._run(putting(self, command), within=within)

    def ack(
        self, deliveries: Sequence[Held[Any]], results: Sequence[Any] | None = None
    ) -> list[Outcome]:
        """Ack many deliveries with one commit; the outcome is false where the lease was over."""
        return self._run(settling(deliveries, self._builder.ack(leases(deliveries), results)))

    def retry(
        self, deliveries: Sequence[Held[Any]], delay: Duration = 0, reason: str = ""
    ) -> list[Outcome]:
        """Retry many deliveries with one commit; see `Delivery.retry`."""
        return self._run(
            settling(deliveries, self._builder.retry(leases(deliveries), delay, reason))
        )

    def bury(self, deliveries: Sequence[Held[Any]], reason: str = "") -> list[Outcome]:
        """Make many deliveries dead letters with one commit; see `Delivery.bury`."""
        return self._run(settling(deliveries, self._builder.bury(leases(deliveries), reason)))

    @overload
    def release(self, what: str, *, reason: str | None = None) -> Outcome: ...
    @overload
    def release(self, what: Sequence[Held[Any]]) -> list[Outcome]: ...
    def release(
        self, what: str | Sequence[Held[Any]], *, reason: str | None = None
    ) -> Outcome | list[Outcome]:
        """Return many deliveries with one commit; or end the lease of a message by its id.

        Args:
            what: deliveries, as for `Delivery.release`; or the id of a message whose worker does
                not return it. That counts as a failed attempt: it is ready again, or dead.
            reason: for an id: stored with the message; "released by NAME" when missing.
        """
        if isinstance(what, str):
            return self._one(self._builder.end_lease(what, reason))
        return self._run(settling(what, self._builder.release(leases(what))))

    def extend(self, deliveries: Sequence[Held[Any]], lease: Duration = 30) -> list[Outcome]:
        """Extend many leases with one commit; see `Delivery.extend`."""
        return self._run(outcomes_of(self._builder.extend(leases(deliveries), lease)))
