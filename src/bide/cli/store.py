"""The store that a command works on."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import unquote, urlsplit

import click

from bide.cli.errors import NOT_DONE
from bide.cli.progress import Bar
from bide.engines.port import Capabilities
from bide.engines.registry import DEFAULT_URL, mask
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.model.body import MAX_BODY
from bide.model.commands import Cancel, Command, Purge, Queues
from bide.model.errors import InvalidArgument, StoreError, StoreUnavailable
from bide.model.identity import OWN, RESERVED, is_listed, is_own
from bide.model.replies import Affected, Names, Outcome
from bide.observing.heartbeat import is_register
from bide.queue.sync import Queue

__all__ = ["NoQueue", "Store", "refuse_lone", "refuse_own"]

R = TypeVar("R")

NAMED = 8
"""How many queues an error names if there is no such queue."""

ELSEWHERE = "put something first, or name another one with --url or BIDE_URL"


def refuse_lone(url: str) -> None:
    """Refuse a store in memory, which no other process can see.

    Raises:
        InvalidArgument: it lives in memory.
    """
    if urlsplit(url).scheme == "memory":
        raise InvalidArgument(
            f"{mask(url)} lives and dies with this command: it sees nothing that others put, and "
            "what it puts is lost; name a store that is shared with --url or BIDE_URL, such as "
            "sqlite:///bide.db"
        )


def refuse_own(queue: str) -> None:
    """Refuse to put into one of bide's own queues.

    Raises:
        InvalidArgument: it is one.
    """
    if is_own(queue):
        raise InvalidArgument(
            f"{queue!r} is bide's own, as are all queues that begin with {OWN} and those in "
            f"{RESERVED}/; take another name"
        )


class NoQueue(click.ClickException):
    """There is no such queue: a typo, or nothing was ever put into it."""

    exit_code = NOT_DONE

    def __init__(self, what: str, store: "Store", name: str) -> None:
        from difflib import get_close_matches

        known = store.names()
        near = get_close_matches(name, known)
        named = [*near, *(one for one in known if one not in near)][:NAMED]
        rest = ", ..." if len(named) < len(known) else ""
        there = f"; there are: {', '.join(named)}{rest}" if known else ", nor any other"
        super().__init__(f"{what} in {store.shown}{there}")


class Store:
    """Opens queues of one store, and closes them all in the end.

    Args:
        url: of the store, or `None` for the file bide.db in this folder.
        makes: whether it may make the file of a store that is not there. Whoever looks, or changes
            what is there, must not: the store of somebody who is in the wrong folder is elsewhere.
    """

    def __init__(self, url: str | None, *, makes: bool = False) -> None:
        self.url = url or DEFAULT_URL
        self._makes = makes
        self._stack = ExitStack()
        self._lane: Lane | None = None

    @property
    def shown(self) -> str:
        """The URL, fit to be shown."""
        return mask(self.url)

    def queue(self, name: str, max_body: int = MAX_BODY) -> Queue:
        """Open a queue, whether or not anything was ever put into it.

        Raises:
            StoreUnavailable: the store is a file, and there is none.
        """
        self._may_open()
        return self._stack.enter_context(Queue(name, self.url, max_body=max_body))

    def existing(self, name: str) -> Queue:
        """Open a queue that has to be there.

        Raises:
            NoQueue: there is no such queue.
            StoreUnavailable: the store is a file, and there is none.
        """
        queue = self.queue(name)
        if not self.has(name):
            raise NoQueue(f"there is no queue {name!r}", self, name)
        return queue

    def told(self, queue: str, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Pass on what became of messages; of the first that is not there, look at the queue.

        So nobody pays for a look who has named a queue that is there.

        Raises:
            NoQueue: there is no such queue.
        """
        looked = False
        for outcome in outcomes:
            if not (looked or outcome.done or outcome.state):
                self.must_have(queue)
                looked = True
            yield outcome

    def must_have(self, queue: str) -> None:
        """See that there is a queue, as far as one may look.

        Raises:
            NoQueue: there is no such queue.
        """
        # Whoever may not look, as with a token to produce alone, is told of the messages.
        with suppress(StoreError):
            if not self.has(queue):
                raise NoQueue(f"there is no queue {queue!r}", self, queue)

    def names(self, prefix: str = "", *, own: bool = False) -> list[str]:
        """Return the names of the queues that begin with `prefix`.

        Args:
            prefix: how they begin; one that only bide's own have asks for these.
            own: whether to return as well those that bide keeps for itself.
        """
        found = self.ask(Names, Queues(prefix)).names
        return [name for name in found if own or is_listed(name, prefix)]

    def has(self, queue: str) -> bool:
        """Tell whether there is such a queue; looking makes no store where there is none."""
        return self.missing is None and queue in self.ask(Names, Queues(queue)).names

    def registers(self) -> list[str]:
        """Return the names of the queues in which workers say that they are there."""
        return [name for name in self.ask(Names, Queues("")).names if is_register(name)]

    def ask(self, kind: type[R], command: Command) -> R:
        """Have a command carried out, and return its reply."""
        reply = self.lane.call(command)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply

    def repeat(self, command: Cancel | Purge, doing: str, total: int | None = None) -> int:
        """Repeat a command by rule, with a progress bar, until it finds no more.

        Returns:
            How many messages it changed.
        """
        count, more = 0, True
        with Bar(doing, total) as bar:
            while more:
                reply = self.ask(Affected, command)
                count, more = count + reply.count, reply.more
                bar.advance(reply.count)
        return count

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store can do."""
        return self.lane.capabilities

    @property
    def lane(self) -> Lane:
        """The way to the store itself."""
        self._may_open()
        if self._lane is None:
            self._lane = open_lane(self.url)
            self._stack.callback(close_lane, self._lane)
        return self._lane

    def at_close(self, callback: Callable[[], object]) -> None:
        """Have something called when this is closed."""
        self._stack.callback(callback)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def missing(self) -> Path | None:
        """The file that would have to be there, if it is not."""
        parts = urlsplit(self.url)
        path = Path(unquote(parts.path.removeprefix("/")))
        file = parts.scheme == "sqlite" and not parts.netloc and bool(parts.path)
        return path.absolute() if file and not path.exists() else None

    def must_stand(self, mend: str = ELSEWHERE) -> None:
        """Refuse a store that is not there.

        Args:
            mend: what the user might do.

        Raises:
            StoreUnavailable: the store is a file, and there is none.
        """
        if (path := self.missing) is not None:
            raise StoreUnavailable(f"there is no store at {path} yet; {mend}")

    def _may_open(self) -> None:
        if not self._makes:
            self.must_stand()
