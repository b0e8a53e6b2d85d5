"""The memory of replies: how many bytes of them may be under way, in a process and of a namespace.

A request of 100 bytes may ask for 8 MiB of messages. So room for the largest possible reply is
taken before the store is read, what the reply does not need is given back afterwards, and the rest
once the request is over. Requests for which there is no room wait; of the namespaces that wait, one
after the other gets room.
"""

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import NamedTuple, Protocol

from bide.engines.ended_pages import size_of_ended
from bide.model import commands as cmd
from bide.model.limits import MAX_NAME
from bide.model.message import size_of
from bide.model.replies import Claimed, EndedPage, Found, GroupsClosed, Names, Page, Reply
from bide.server.limits.request_bodies import ClientGone
from bide.server.problem import Problem

PATIENCE = 5.0
"""Seconds that a request waits for room."""

MESSAGE_OVERHEAD = 512
"""About the number of bytes of a message in memory, beside its body, id, headers and failures."""

FACTS_BYTES = 64 * 1024
"""Bytes of the facts that explain a message: its last failure, the workers of its queue."""

NAMES_BYTES = 256 * 1024
"""Bytes of the names of a namespace's queues."""

BUCKET_BYTES = 48
"""Bytes of a bucket of a forecast."""


CLOSED_BYTES = MAX_NAME + 100
"""Bytes of a closed group, at most."""


def room_for(command: cmd.Command, largest: int) -> int:
    """Return how many bytes the reply of a command may take.

    0 for commands whose replies are no larger than their requests.

    Args:
        command: the command.
        largest: how many bytes a message may take; each reply may contain one.

    Example:
        >>> room_for(cmd.Find("q", ["a", "b"]), 1_000), room_for(cmd.Scan("q", limit=10_000), 1_000)
        (2000, 8388608)
    """
    match command:
        case cmd.Find():
            count = len(command.ids)
        case cmd.Scan():
            count = command.limit
        case cmd.Claim():
            count = command.count
        case cmd.History() | cmd.ListEnded():
            return max(command.max_bytes, FACTS_BYTES)
        case cmd.Explain():
            return FACTS_BYTES
        case cmd.Queues():
            return NAMES_BYTES
        case cmd.ClosedGroups():
            return CLOSED_BYTES * command.limit
        case cmd.ForecastCommand():
            return BUCKET_BYTES * command.buckets
        case _:
            return 0
    # A reply ends before `max_bytes` are exceeded, but may contain one message of any size.
    return min(max(command.max_bytes, largest), count * largest)


def size_of_reply(reply: Reply) -> int | None:
    """Return about how many bytes a reply takes, `None` for one whose size is not known."""
    match reply:
        case Found() | Page() | Claimed():
            messages = [message for message in reply.messages if message is not None]
            return MESSAGE_OVERHEAD * len(messages) + sum(map(size_of, messages))
        case EndedPage():
            return sum(map(size_of_ended, reply.messages))
        case Names():
            return sum(map(len, reply.names))
        case GroupsClosed():
            return CLOSED_BYTES * len(reply.groups)
    return None


class Client(Protocol):
    """What a request knows of its client."""

    disconnected: bool
    """Whether the client has closed the connection."""
    waiting: "asyncio.Future[None] | None"
    """What the request waits for; it gets `ClientGone` when the client closes the connection."""


class Present:
    """A client that counts as present until `leave` is called."""

    disconnected = False
    waiting: "asyncio.Future[None] | None" = None

    def leave(self) -> None:
        """Note that the client has gone, and end the wait of its request."""
        self.disconnected = True
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ClientGone())


class Applicant(NamedTuple):
    """A request that waits for room."""

    size: int
    """The bytes that it wants."""
    granted: "asyncio.Future[None]"
    """Done when it has them."""


class ReplyBudget:
    """Room for replies.

    Args:
        most: bytes of all namespaces together.
        share: bytes of one namespace.
    """

    def __init__(self, most: int, share: int) -> None:
        self._most = most
        self._share = share
        self.taken = 0
        """Bytes that are taken."""
        self._taken_by_namespace: Counter[str | None] = Counter()
        self.waiting: dict[str | None, deque[Applicant]] = {}
        """By namespace: the requests that wait, in the order of arrival. The namespace that got
        room last is the last one."""

    async def take(self, namespace: str | None, size: int, client: Client) -> int:
        """Take room, and return how much it is: the share of a namespace at most.

        Args:
            namespace: the namespace.
            size: bytes.
            client: the client, for which nothing waits once it has gone.

        Raises:
            Problem: there was no room for `PATIENCE` seconds.
            ClientGone: the client has gone.
        """
        size = min(size, self._share)
        queue = self.waiting.setdefault(namespace, deque())
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        applicant = Applicant(size, granted)
        queue.append(applicant)
        self._serve()
        if granted.done():
            return size
        client.waiting = granted
        try:
            async with asyncio.timeout(PATIENCE):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.give_back(namespace, size)  # it came together with the end of the wait
            else:
                with suppress(ValueError):  # `_serve` has removed it, since it is done
                    queue.remove(applicant)
                self._serve()  # those behind it may need less
            if isinstance(error, TimeoutError):
                raise Problem(
                    "overloaded",
                    f"answers under way of the namespace {namespace or '(of the whole store)'} or "
                    "of the process take all the memory for them; try again in a second, or ask "
                    "for less "
                    "at a time",
                ) from None
            raise
        finally:
            client.waiting = None
        return size

    def give_back(self, namespace: str | None, size: int) -> None:
        """Give room back."""
        self.taken -= size
        self._taken_by_namespace[namespace] -= size
        if not self._taken_by_namespace[namespace]:
            del self._taken_by_namespace[namespace]
        if self.waiting:
            self._serve()

    def _serve(self) -> None:
        """Give room to those that wait, namespace by namespace, one request of each in turn."""
        was_room_given = True
        while was_room_given:
            was_room_given = False
            for namespace, queue in list(self.waiting.items()):
                while queue and queue[0].granted.done():  # its client has gone
                    queue.popleft()
                if not queue:
                    del self.waiting[namespace]
                    continue
                size, granted = queue[0]
                if self._taken_by_namespace[namespace] + size > self._share:
                    continue
                if self.taken + size > self._most:
                    return  # no smaller one of another namespace goes first, again and again
                queue.popleft()
                self.taken += size
                self._taken_by_namespace[namespace] += size
                granted.set_result(None)
                del self.waiting[namespace]
                if queue:
                    self.waiting[namespace] = queue  # as the last one
                was_room_given = True
