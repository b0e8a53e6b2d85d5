"""What a queue remembers of messages that have ended: the methods of both kinds of queue."""

from typing import Any, NoReturn, TypeVar, overload

import msgspec

from bide.model.ended import PENDING, End
from bide.model.errors import AccessDenied, NotAcked, NotEnded, NotRemembered
from bide.model.replies import Ends
from bide.model.times import Duration
from bide.queue.base import AsyncBase, BlockingBase
from bide.queue.values import wait_seconds

T = TypeVar("T")


def result_in(id: str, reply: Ends, type: Any = Any) -> Any:
    """Return the result of a message, of what its queue remembers.

    Raises:
        NotEnded: it is still in the queue.
        NotAcked: it ended in another way.
        NotRemembered: nothing is known of it.
        AccessDenied: a server withholds results.
    """
    if reply.state in PENDING:
        raise NotEnded(f"{id} is {reply.state}; it has no result yet")
    if reply.ends and reply.ends[0].how == "acked":
        result = reply.ends[0].result
        if result == b"":
            raise AccessDenied(
                f"the server withholds the result of {id!r}: the token has no right 'bodies'"
            )
        return None if result is None else msgspec.json.decode(result, type=type)
    _refuse(id, reply)


def _refuse(id: str, reply: Ends) -> NoReturn:
    if reply.ends:
        end = reply.ends[0]
        by = f" by {end.by}" if end.by else ""
        why = f": {end.failures[-1].reason.splitlines()[0]}" if end.failures else ""
        told = {"dead": f"died{' at' * bool(by)}{by[3:]}{why}"}.get(end.how, f"was {end.how}{by}")
        if end.how == "expired":
            told = "expired before a worker took it"
        raise NotAcked(f"{id} {told}; it has no result", end)
    if reply.state in ("dead", "expired"):
        raise NotAcked(f"{id} is {reply.state}; it has no result", None)
    raise NotRemembered(
        f"nothing is remembered of {id!r}: there was no such message, or the queue has no "
        "result_ttl (bide set QUEUE --result-ttl 1d), or its time has passed"
    )


class BlockingEndings(BlockingBase):
    """These methods for threads."""

    def history(self, id: str) -> list[End]:
        """Read how messages with an id have ended, the newest first: the last 20.

        A queue remembers this for as long as its setting `history` says; see `configure`.
        """
        return self._do(Ends, self._builder.history(id)).ends

    @overload
    def result(self, id: str, *, wait: Duration | None = None) -> Any: ...
    @overload
    def result(self, id: str, *, wait: Duration | None = None, type: type[T]) -> T: ...
    def result(self, id: str, *, wait: Duration | None = None, type: Any = Any) -> Any:
        """Return the result of a message: what its handler returned, or `ack` was given.

        A queue keeps results for as long as its setting `result_ttl` says; see `configure`.

        Args:
            id: of the message.
            wait: how long to wait for its end; by default not at all.
            type: to decode the result into, as for bodies.

        Returns:
            The result; `None` if it was acked without one.

        Raises:
            NotEnded: the message is still in the queue.
            NotAcked: it died, expired, was cancelled or purged; its `end` says more.
            NotRemembered: there is no such message, and nothing is remembered of it.
        """
        seconds = wait_seconds(wait)
        command = self._builder.history(id, watch=bool(seconds))
        return result_in(id, self._do(Ends, command, seconds), type)


class AsyncEndings(AsyncBase):
    """These methods for tasks."""

    async def history(self, id: str) -> list[End]:
        """Async form of `Queue.history`."""
        return (await self._do(Ends, self._builder.history(id))).ends

    @overload
    async def result(self, id: str, *, wait: Duration | None = None) -> Any: ...
    @overload
    async def result(self, id: str, *, wait: Duration | None = None, type: type[T]) -> T: ...
    async def result(self, id: str, *, wait: Duration | None = None, type: Any = Any) -> Any:
        """Async form of `Queue.result`."""
        seconds = wait_seconds(wait)
        command = self._builder.history(id, watch=bool(seconds))
        return result_in(id, await self._do(Ends, command, seconds), type)
