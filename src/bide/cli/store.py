"""The store that a command works on."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import click
import msgspec
from click.core import ParameterSource

from bide.cli.output import warn
from bide.engines.registry import is_server, mask, named_url
from bide.lane.first_contact import missing_file
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.lane.steps import Steps, run_steps
from bide.model.commands import Command, Queues
from bide.model.errors import InvalidArgument, StoreError, StoreUnavailable
from bide.model.identity import SERVER_NAMESPACE, actor_of, check_prefix
from bide.model.internal_queues import INTERNAL_PREFIX, is_internal, is_listed
from bide.model.limits import MAX_BODY
from bide.model.replies import Names, Reply, expect
from bide.queue.arguments import user_name
from bide.queue.sync import Queue

T = TypeVar("T")
R = TypeVar("R", bound=Reply)

MOST_NAMED_QUEUES = 8
"""How many existing queues an error names."""

ELSEWHERE = "put a message first, or name another store with --url or BIDE_URL"


class CommandStore(ExitStack):
    """The store that a command names; its queues are closed with it.

    Args:
        url: the URL of the store; `None`: the file bide.db in this folder.
        makes: whether to create the file of a store that does not exist. Commands that only read
            or change messages must not create it: the user may be in the wrong folder.
    """

    def __init__(self, url: str | None, *, makes: bool = False) -> None:
        super().__init__()
        self.url = named_url(url)
        self.shown = mask(self.url)
        """The URL without its password."""
        self.remote = is_server(self.url)
        """Whether the store is behind a server."""
        self.actor = actor_of(f"{user_name()}@{socket.gethostname()}")
        """The name of the user in changes."""
        self._makes = makes
        self._lane: Lane | None = None
        """The lane to the store, once it was needed."""

    def of_app(self, url: str) -> "CommandStore":
        """Return the store of an app, unless the command line names another one with `--url`.

        Args:
            url: the URL that the app names; `None`: it names none.
        """
        source = click.get_current_context().get_parameter_source("url")
        if source is ParameterSource.COMMANDLINE:
            return self
        return self.enter_context(CommandStore(url, makes=self._makes))

    def queue(self, name: str, max_body: int = MAX_BODY) -> Queue:
        """Open a queue, whether or not anything was ever put into it.

        Raises:
            StoreUnavailable: the store is a file, and there is none.
        """
        self._may_open()
        return self.enter_context(Queue(name, self.url, max_body=max_body, actor=self.actor))

    def trial(self, name: str, max_body: int, *, dry_run: bool) -> Queue:
        """Open a queue; for a dry run that must not create the store, one in memory."""
        if dry_run and self.missing is not None:
            return self.enter_context(Queue(name, "memory://dry-run", max_body=max_body))
        return self.queue(name, max_body)

    def existing(self, name: str) -> Queue:
        """Open a queue that must exist.

        Raises:
            click.ClickException: there is no such queue.
            StoreUnavailable: the store is a file, and there is none.
        """
        queue = self.queue(name)
        if not self.has(name):
            raise self.no_queue(name)
        return queue

    def no_queue(self, name: str, text: str = "there is no queue") -> click.ClickException:
        """Return the error for a missing queue: it says which there are, similar names first."""
        from difflib import get_close_matches

        names = self.names()
        similar = get_close_matches(name, names, MOST_NAMED_QUEUES)
        ordered = [*similar, *(other for other in names if other not in similar)]
        others = ", nor any other"
        if ordered:
            ellipsis = ", ..." if len(ordered) > MOST_NAMED_QUEUES else ""
            others = f"; there are: {', '.join(ordered[:MOST_NAMED_QUEUES])}{ellipsis}"
        return click.ClickException(f"{text} {name!r} in {self.shown}{others}")

    def must_have(self, queue: str) -> None:
        """Check that a queue exists, if the token allows it to be read.

        Raises:
            click.ClickException: there is no such queue.
        """
        # A token that may only produce gets the outcomes of the messages instead.
        with suppress(StoreError):
            if not self.has(queue):
                raise self.no_queue(queue)

    @contextmanager
    def telling_new(self, queue: str) -> Iterator[None]:
        """Tell the user that a queue is new if what is done in the block makes it: maybe a typo."""
        existed = True  # a token may not allow to look
        with suppress(StoreError):
            existed = self.has(queue)
        yield
        if not existed:
            warn(f"{queue} is new: there was no such queue in {self.shown}")

    def names(self, prefix: str = "", *, own: bool = False) -> list[str]:
        """Return the names of the queues that begin with `prefix`.

        Args:
            prefix: how they begin; a prefix of internal queues returns these.
            own: whether to include the internal queues of bide.
        """
        names = self.ask(Names, Queues(check_prefix(prefix))).names
        return [name for name in names if own or is_listed(name, prefix)]

    def has(self, queue: str) -> bool:
        """Tell whether a queue exists, without creating the store."""
        return self.missing is None and queue in self.ask(Names, Queues(queue)).names

    def ask(self, kind: type[R], command: Command) -> R:
        """Run a command in the user's name, and return its reply."""
        if not command.only_reads:
            command = msgspec.structs.replace(command, actor=self.actor)
        return expect(kind, self.lane.call(command))

    def run(self, steps: Steps[T]) -> T:
        """Run the commands of some steps, and return their result."""
        return run_steps(steps, self.lane.call)

    @property
    def lane(self) -> Lane:
        """The lane to the store, which is checked each time: its file may be moved away."""
        self._may_open()
        if self._lane is None:
            self._lane = open_lane(self.url)
            self.callback(close_lane, self._lane)
        return self._lane

    @property
    def missing(self) -> Path | None:
        """The file of the store, if it does not exist or has no tables of bide."""
        return missing_file(self.url)

    def must_exist(self, fix: str = ELSEWHERE) -> None:
        """Refuse a store that does not exist.

        Args:
            fix: what the user can do.

        Raises:
            StoreUnavailable: the store is a file, and there is none, or it has no tables of bide.
        """
        if (path := self.missing) is not None:
            remark = " (the file has no tables of bide)" if path.exists() else ""
            raise StoreUnavailable(f"there is no store at {path} yet{remark}; {fix}")

    def _may_open(self) -> None:
        if not self._makes:
            self.must_exist()


def refuse_memory(
    url: str, fix: str = "name a shared store with --url or BIDE_URL, such as sqlite:///bide.db"
) -> None:
    """Refuse a store in memory, which no other process can see.

    Args:
        url: the URL of the store.
        fix: what the user can do.

    Raises:
        InvalidArgument: the URL is that of a store in memory.
    """
    if url.partition(":")[0].lower() == "memory":
        raise InvalidArgument(
            f"{mask(url)} exists only while this command runs: no other process sees its "
            f"messages, and they are lost at its end; {fix}"
        )


def refuse_internal(queue: str) -> None:
    """Refuse to put into an internal queue of bide.

    Raises:
        InvalidArgument: the queue is internal.
    """
    if is_internal(queue):
        raise InvalidArgument(
            f"{queue!r} is bide's own, as are all queues that begin with {INTERNAL_PREFIX} and "
            f"those in {SERVER_NAMESPACE}/; take another name"
        )
