"""Search the messages of several queues: through the orders that a store has, else step by step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Count, Find, Queues, Scan, Where
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name, check_prefix, plain_text, text_of
from bide.model.internal_queues import is_listed
from bide.model.limits import MAX_BYTES, check_whole
from bide.model.message import Message, State, size_of
from bide.model.replies import Counts, Found, Names, Page
from bide.model.times import unix
from bide.queue.arguments import check_state
from bide.queue.results import cursor_to, place_of

READ = 200
"""How many messages one command reads."""

READ_BYTES = 2 << 20
"""How many bytes of messages one command reads."""

PAGE_BYTES = MAX_BYTES + READ_BYTES
"""How many bytes of messages are read for a page at most, and then one message of any size."""

MOST_COMMANDS = 500
"""How many commands a page costs at most, however many queues there are."""

MOST_COUNTED = 200
"""In how many queues messages are counted, to say how many there are to search."""

MAX_LIMIT = 10_000
MAX_READ = 1_000_000
"""The largest values of `limit` and `read` of a search."""

_ENDS: tuple[State, ...] = ("acked", "expired")


class Query(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to search for: all that is given must hold."""

    id: str | None = None
    """How the id begins."""
    group: str | None = None
    state: State | Literal["next"] | None = None
    """ "next": ready, then delayed."""
    after: int | None = None
    """Due at this time or later, in Unix milliseconds."""
    before: int | None = None
    error: str | None = None
    """What the reason of the last failure contains."""
    header: str | None = None
    """NAME, or NAME=TEXT for a header that contains a text."""
    body: str | None = None
    """What the body contains, as JSON or as UTF-8 text."""
    repeats: bool = False
    """Only messages that repeat."""

    @property
    def reads_bodies(self) -> bool:
        """Whether it looks into bodies or headers."""
        return self.body is not None or self.header is not None

    def matches(self, message: Message, seen: Callable[[Message], Message]) -> bool:
        """Tell whether a message is one of those; `seen` returns it as the caller may see it."""
        states = ("ready", "delayed") if self.state == "next" else (self.state,)
        if (
            (self.id is not None and not message.id.startswith(self.id))
            or (self.group is not None and message.group != self.group)
            or (self.state is not None and message.state not in states)
            or (self.after is not None and message.due < self.after)
            or (self.before is not None and message.due >= self.before)
            or (self.error is not None and self.error not in (message.error or ""))
            or (self.repeats and (not message.repeats or message.state in _ENDS))
        ):
            return False
        return not self.reads_bodies or self._in_content(seen(message))

    def _in_content(self, message: Message) -> bool:
        """Return whether body and headers contain what is searched for."""
        if self.body is not None and self.body.encode() not in message.seen_data:
            return False
        if self.header is None:
            return True
        _ = message.seen_data  # a server withholds headers together with bodies
        name, equals, text = self.header.partition("=")
        value = (message.headers or {}).get(name)
        return value is not None and (not equals or text in value)


class SearchPage(NamedTuple):
    """What a search has found so far.

    Example:
        >>> print(SearchPage([], 10_000, 5_000_000, "..."))
        0 found; searched 10,000 of 5,000,000 messages
    """

    messages: list[Message]
    searched: int
    """How many messages were read for this page and those before it."""
    total: int | None
    """How many there are to read; `None` if an order of the store leads to those that match, or if
    the search is over more than 200 queues."""
    cursor: str | None
    """Where the search goes on; `None`: it has read everything."""

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {max(self.total, self.searched):,}"
        return f"{len(self.messages):,} found; searched {self.searched:,}{of} messages"


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a search goes on: a queue, which of its orders, and a cursor of the store."""

    queue: str = ""
    """Its name as the caller knows it; queues with smaller names have been searched."""
    order: int = 0
    """Its place in what `_orders` returns."""
    cursor: str | None = None
    """`None`: the beginning of the order."""
    searched: int = 0
    """How many messages were read so far."""


def query_of(**given: Any) -> Query:
    """Return a query after a check.

    Args:
        given: its fields; times are aware, or Unix seconds. `None`: not searched by.

    Raises:
        InvalidArgument: nothing to search for is given, or a value is not valid.
    """
    fields = {
        name: _CHECKS.get(name, _text)(value, name)
        for name, value in given.items()
        if value is not None and not (name == "repeats" and value is False)
    }
    if not fields:
        raise InvalidArgument(
            "search needs a condition: id=, group=, state=, after=, before=, error=, header=, "
            "body= or repeats="
        )
    return Query(**fields)


def _text(text: str, name: str) -> str:
    """Return a text to search for after a check; `name` is that of the argument."""
    if not isinstance(text, str) or text_of(text) != text:
        raise InvalidArgument(f"{name}={text!r} is not text; give a str")
    if text == "":
        raise InvalidArgument(f'{name}="" is in every message; give the text to search for')
    return plain_text(text)


def _true(value: Any, name: str) -> bool:
    """Return a condition that is either asked for or not, after a check."""
    if value is not True:
        raise InvalidArgument(f"{name}={value!r} is neither True nor False")
    return True


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "id": check_name,
    "group": check_name,
    "state": lambda state, _: check_state(state),
    "after": unix,
    "before": unix,
    "repeats": _true,
}
"""What checks each field of a query, with its value and its name; other fields are texts."""


def steps_in_store(
    prefix: str, query: Query, cursor: str | None, limit: int, read: int, *, ids_ordered: bool
) -> Steps[SearchPage]:
    """Search the queues of a store whose names begin with `prefix`; see `search_steps`."""
    reply: Names = yield Queues(check_prefix(prefix, "queue"))
    names = [(name, name) for name in reply.names if is_listed(name, prefix)]
    return (yield from search_steps(names, query, cursor, limit, read, ids_ordered=ids_ordered))


def search_steps(
    queues: Sequence[tuple[str, str]],
    query: Query,
    cursor: str | None,
    limit: int,
    read: int,
    *,
    ids_ordered: bool,
    seen: Callable[[Message], Message] = lambda message: message,
    counts: bool = True,
) -> Steps[SearchPage]:
    """Search some queues, as far as `read` allows.

    Args:
        queues: the names of each: the caller's, and the store's.
        query: what to search for.
        cursor: of the page before.
        limit: how many messages fill a page.
        read: how many messages are read for it.
        ids_ordered: whether the store reads messages by the beginning of their ids.
        seen: returns a message as the caller may see its body and headers.
        counts: whether to count how many messages there are to read.

    Raises:
        InvalidArgument: no search made this cursor, or a number is out of bounds.
    """
    check_whole(limit, "limit", 1, MAX_LIMIT)
    check_whole(read, "read", 1, MAX_READ)
    place = _placed(cursor)
    orders = _orders(query, ids_ordered=ids_ordered)
    reads_all = any(order.reads_all for order in orders)
    counts = counts and len(queues) <= MOST_COUNTED and reads_all
    total = (yield from _total(queues, orders)) if counts else None
    page = _Filling(query, seen, limit, read, skips=query.id if orders[0].exact else None)
    for name, store_name in sorted(queues):
        if name < place.queue:  # a page before has searched it
            continue
        is_begun = name == place.queue
        for number in range(place.order if is_begun else 0, len(orders)):
            start = place.cursor if is_begun and number == place.order else None
            stopped_at = yield from page.fill(store_name, orders[number], start)
            if stopped_at is not None:
                searched = place.searched + page.searched
                next_place = _Place(name, number, stopped_at or None, searched)
                return SearchPage(page.messages, searched, total, cursor_to(next_place))
    return SearchPage(page.messages, place.searched + page.searched, total, None)


class _Order(NamedTuple):
    """One way through a queue, in an order that the store has."""

    state: State | None = None
    where: Where | None = None
    prefix: str | None = None
    exact: bool = False
    """Only the message of exactly the id that is searched for."""

    @property
    def reads_all(self) -> bool:
        """Whether it reads all messages of a state, or of the queue."""
        return self.where is None and self.prefix is None and not self.exact


def _orders(query: Query, *, ids_ordered: bool) -> list[_Order]:
    """Return the ways through a queue by which the fewest messages are read."""
    if query.group is not None:
        return [_Order(where=Where(query.group))]
    if query.id is not None and ids_ordered:
        return [_Order(prefix=query.id)]
    if query.id is not None:
        return [_Order(exact=True), *_by_state(query)]
    return _by_state(query)


def _by_state(query: Query) -> list[_Order]:
    """Return the ways through a queue by states; a range of due times bounds the delayed ones."""
    by_due = query.after is not None or query.before is not None
    delayed = _Order("delayed", Where(after=query.after, before=query.before) if by_due else None)
    if query.state == "next":
        return [_Order("ready"), delayed]
    if query.state is not None:
        return [delayed if query.state == "delayed" else _Order(query.state)]
    if query.error is not None:  # dead letters first: of the others, few have failed
        return [_Order("dead"), _Order("leased"), _Order("ready"), delayed, *map(_Order, _ENDS)]
    if by_due:
        return [delayed, *map(_Order, ("ready", "leased", "dead", *_ENDS))]
    return [_Order()]


@dataclass
class _Filling:
    """A page that fills up."""

    query: Query
    seen: Callable[[Message], Message]
    """Returns a message as the caller may see it."""
    limit: int
    """How many messages fill it."""
    read: int
    """How many messages are read for it at most."""
    skips: str | None
    """The id that an order before the others has looked up."""
    messages: list[Message] = field(default_factory=list)
    searched: int = 0
    """How many messages were read for it."""
    _commands: int = 0
    """How many commands it has cost."""
    _bytes: int = 0
    """How many bytes of messages were read for it."""
    _known: set[tuple[str, str]] = field(default_factory=set)
    """Queue and id of each message of the page."""

    @property
    def _full(self) -> bool:
        return (
            len(self.messages) >= self.limit
            or self.searched >= self.read
            or self._commands >= MOST_COMMANDS
            or self._bytes >= MAX_BYTES
        )

    def fill(self, queue: str, order: _Order, cursor: str | None) -> Steps[str | None]:
        """Add what is found in one order; return where it stopped.

        Args:
            queue: its name in the store.
            order: what to read.
            cursor: where to begin; `None`: at the beginning.

        Returns:
            The cursor at which the page was full, "" for the beginning; `None` at the end of the
            order.
        """
        while not self._full:
            room = self.limit - len(self.messages)
            # While all messages match, as many are read as the page has room for: more would be
            # read again for the next page.
            all_match = self.searched == len(self.messages)
            size = min(READ, self.read - self.searched, room if all_match else READ)
            page = yield from self._page(queue, order, cursor, size)
            matching = self._matching(page, order)
            if len(matching) > room:  # read again what fits, for the cursor behind it
                last = page.messages.index(matching[room - 1])
                page = yield from self._page(queue, order, cursor, last + 1)
                matching = self._matching(page, order)
            self.searched += len(page.messages)
            self._bytes += sum(map(size_of, page.messages))
            self._add(matching)
            cursor = page.cursor
            if cursor is None:
                return None
        return cursor or ""

    def _page(self, queue: str, order: _Order, cursor: str | None, size: int) -> Steps[Page]:
        """Read up to `size` messages in an order, behind a cursor."""
        self._commands += 1
        if order.exact:
            reply: Found = yield Find(queue, [self.query.id or ""])
            return Page([message for message in reply.messages if message is not None], None)
        page: Page = yield Scan(
            queue, order.state, order.where, cursor, size, READ_BYTES, prefix=order.prefix
        )
        return page

    def _matching(self, page: Page, order: _Order) -> list[Message]:
        """Return the messages that match, without the one that was looked up before."""
        return [
            message
            for message in page.messages
            if self.query.matches(message, self.seen) and (order.exact or message.id != self.skips)
        ]

    def _add(self, messages: Iterable[Message]) -> None:
        """Add messages; one that moved meanwhile may come a second time."""
        for message in messages:
            key = message.queue, message.id
            if key not in self._known:
                self._known.add(key)
                self.messages.append(message)


def _total(queues: Sequence[tuple[str, str]], orders: Sequence[_Order]) -> Steps[int]:
    """Count the messages that a search reads at most."""
    states = {order.state for order in orders if order.reads_all}
    all_states = None in states
    total = 0
    for _, store_name in queues:
        reply: Counts = yield Count(store_name)
        sizes = msgspec.structs.asdict(reply.sizes)
        total += sum(count for state, count in sizes.items() if all_states or state in states)
        if all_states or not states.isdisjoint(_ENDS):
            total += reply.kept
    return total


def _placed(cursor: str | None) -> _Place:
    """Return the place of a cursor, the beginning without one.

    Raises:
        InvalidArgument: no search made it.
    """
    if cursor is None:
        return _Place()
    place = place_of(cursor, _Place) if isinstance(cursor, str) else None
    if place is None or place.order < 0:
        shown = repr(cursor)[:100]
        raise InvalidArgument(f"cursor={shown} is not from a search; begin without one")
    return place
