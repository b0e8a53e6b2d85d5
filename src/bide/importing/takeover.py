"""A takeover from beginning to end."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, get_args

import msgspec

from bide.importing.pickles import Pickled
from bide.importing.server_url import check_redis
from bide.importing.source import (
    MALFORMED,
    NOW,
    Elsewhere,
    Gone,
    NotTakenOver,
    Place,
    SourceEntry,
    SourceQueue,
)
from bide.importing.transit import Ready, Transit
from bide.lane.steps import find_all
from bide.model.errors import AlreadyMoving, InvalidArgument
from bide.model.limits import check_whole
from bide.model.parts import in_parts
from bide.queue.sync import Queue, check_blocking

Library = Literal["celery", "rq", "arq", "huey", "bullmq"]

EXAMPLES = 100
"""How many messages that stay are listed, of those that are refused and of those that are held."""

PASSES = 10
"""How often a run looks for more: programs that still put messages must not keep it for ever."""


class TakenOver(msgspec.Struct):
    """What a takeover did. True if nothing stays but expired messages, and those of `waiting`."""

    stored: int = 0
    """Messages that are in the queue now and no longer in the source."""
    finished: int = 0
    """Of these, the messages that an interrupted run had in transit."""
    waiting: int = 0
    """Messages without a due time that stay, with `delayed_only`."""
    expired: int = 0
    """Messages that stay because the library would not run them either: they have expired, or will
    before they are due."""
    pickled: int = 0
    """Messages that stay because they are pickled."""
    refused: int = 0
    """Messages that stay for another reason."""
    reasons: dict[str, str] = {}
    """Of the first hundred of these: the id or the beginning, and why."""
    held: int = 0
    """Messages that workers of the source have; they are not taken over."""
    held_examples: dict[str, str] = {}
    """The first hundred of their ids, and what they are."""
    source_queue: str = ""
    """The queue of the library that was read."""

    def __bool__(self) -> bool:
        return not (self.pickled or self.refused or self.held)


def take_over(
    queue: Queue,
    library: Library,
    url: str,
    *,
    source_queue: str | None = None,
    allow_pickle: bool = False,
    delayed_only: bool = False,
    dry_run: bool = False,
    batch: int = 200,
    progress: Callable[[int], object] | None = None,
) -> TakenOver:
    """Move the pending messages of another library's queue on Redis into a queue.

    Waiting and delayed messages are moved with their ids. A message leaves the source before bide
    can deliver it, and no run, however it ends, loses one or lets both systems deliver it: call it
    again, with the same queue, to go on. Messages that workers of the source have stay. Stop these
    workers first, so that they return what they hold.

    Args:
        queue: where the messages go, in any store.
        library: whose messages they are.
        url: of the Redis with the source; no cluster.
        source_queue: its name in the library; by default the library's own default.
        allow_pickle: read pickled messages of RQ, arq and Huey, as far as they have plain values
            only, and move pickled tasks of Celery as they are. No code in them is run.
        delayed_only: move only messages with a due time; those that wait for a worker stay.
        dry_run: only count.
        batch: how many messages are in transit at a time.
        progress: called after each batch with its number of messages.

    Returns:
        What was moved and what stays, and why.

    Raises:
        InvalidArgument: an argument is invalid, or the layout of the source is not a known one.
        AlreadyMoving: another run takes messages out of this source, or one into another queue was
            killed and has messages in transit.
        StoreError: one of the stores failed; call it again to go on.

    Example:
        >>> import bide
        >>> orders = bide.Queue("orders", "memory://from-rq")
        >>> bide.take_over(orders, "rq", "redis://localhost:1?reconnect=1ms")
        Traceback (most recent call last):
        bide.model.errors.StoreUnavailable: redis://localhost:1?reconnect=1ms: no connection ...
        >>> orders.close()
    """
    check_blocking("take_over takes a", queue)
    if library not in get_args(Library):
        raise InvalidArgument(f"library={library!r} must be one of {', '.join(get_args(Library))}")
    check_whole(batch, "batch", 1, 1_000)
    check_redis(url)
    source_class = _source_of(library)
    name = source_queue or source_class.default
    if not name:
        raise InvalidArgument(f"{library} has no default queue; name it with source_queue='...'")
    from bide.importing.foreign_redis import ForeignRedis

    with closing(ForeignRedis(url)) as redis:
        source = source_class(redis, name, pickles=allow_pickle, max_body=queue._builder.max_body)
        transit = Transit(source, f"{library}:{name}", queue)
        run = _Run(
            queue,
            source,
            transit,
            batch,
            delayed_only=delayed_only,
            dry_run=dry_run,
            progress=progress or (lambda count: None),
        )
        if dry_run:
            run.count()
        else:
            with transit.lock():
                run.move()
        run.note_rest()
    run.result.source_queue = name
    return run.result


def _source_of(library: Library) -> type[SourceQueue]:
    """Return the class that reads a library's queues, imported only now."""
    from bide.importing.arq import ArqSource
    from bide.importing.bullmq import BullMQSource
    from bide.importing.celery import CelerySource
    from bide.importing.huey import HueySource
    from bide.importing.rq import RQSource

    sources: dict[Library, type[SourceQueue]] = {
        "celery": CelerySource,
        "rq": RQSource,
        "arq": ArqSource,
        "huey": HueySource,
        "bullmq": BullMQSource,
    }
    return sources[library]


@dataclass
class _Run:
    """One run over a source."""

    queue: Queue
    source: SourceQueue
    transit: Transit
    batch: int
    delayed_only: bool
    dry_run: bool
    progress: Callable[[int], object]
    result: TakenOver = field(default_factory=TakenOver)
    _counted_ids: set[str] = field(default_factory=set)
    """In a dry run: the ids of the messages that a run would have moved so far."""
    _stuck: TakenOver = field(default_factory=TakenOver)
    """What an interrupted run has taken out of the source, and this one cannot move."""

    def count(self) -> None:
        """Count what a run would move: what an interrupted run left, and what is in the source."""
        self.result.finished = self._count(self._readable(self.transit.entries(), taken=True))
        for place in self.source.places():
            skip = 0  # how many elements of the place were read
            while page := self._page(place, skip):
                self._count(self._wanted(page))
                skip += len(page)
                self.progress(len(page))

    def _count(self, messages: list[Ready]) -> int:
        """Count messages that a run would move; return how many they are."""
        self._counted_ids.update(message.item.id for message in messages)
        self.result.stored += len(messages)
        return len(messages)

    def move(self) -> None:
        """Finish what an interrupted run left, then move all."""
        places = self.source.places()
        try:
            self._finish()
            # A worker of the source that takes messages meanwhile makes a pass miss some.
            for _ in range(PASSES):
                if not self._pass(places):
                    break
            if self.result.stored:
                self.transit.forget()
        except AlreadyMoving:  # what is in transit is another run's
            raise
        except BaseException:  # also Ctrl-C: until it is finished, neither system delivers it
            self._finish()
            raise

    def note_rest(self) -> None:
        """Note what workers of the source have, and what waits for other messages."""
        for stranded in self.source.stranded():
            self._refuse(stranded.id, stranded.what)
        for held in self.source.held():
            self.result.held += 1
            if len(self.result.held_examples) < EXAMPLES:
                self.result.held_examples[held.id] = held.what

    def _finish(self) -> None:
        """Move what an interrupted run has taken out of the source."""
        for entries in in_parts(self.transit.entries(), self.batch):
            ready = self._readable(entries, taken=True)
            reasons = dict(self.result.reasons)
            stuck = self._stuck = msgspec.structs.replace(self.result, reasons=reasons)
            self.result.finished += self._carry(ready)
            # What has gone back to the source counts when a pass meets it there.
            self.result.refused, self.result.reasons = stuck.refused, dict(stuck.reasons)

    def _pass(self, places: list[Place]) -> int:
        """Move all that can be moved; return how many messages that were."""
        stored_before = self.result.stored
        # What stays in the source, each pass meets again: it counts once.
        self.result.waiting = self.result.expired = 0
        self.result.pickled, self.result.refused = self._stuck.pickled, self._stuck.refused
        self.result.reasons = dict(self._stuck.reasons)
        for place in places:
            # What was moved is gone from the source, so the next page begins after what has stayed.
            stayed = 0
            while page := self._page(place, stayed):
                taken = self.transit.take(self._wanted(page))
                moved = self._carry(taken)
                stayed += len(page) - moved
                self.progress(len(page))
        return self.result.stored - stored_before

    def _wanted(self, page: list[SourceEntry]) -> list[Ready]:
        """Return the messages to take out of the source: those whose ids are free in the queue."""
        ready = self._readable(page)
        ids = [message.item.id for message in ready]
        used_ids = set(self.queue._run(find_all(self.queue.name, ids)))
        used_ids.update(self._counted_ids.intersection(ids))
        wanted = []
        for message in ready:
            if message.item.id in used_ids:
                self._refuse_used_id(message)
            else:
                used_ids.add(message.item.id)  # the page may have two of one id
                wanted.append(message)
        return wanted

    def _carry(self, taken: list[Ready]) -> int:
        """Put messages that were taken out of the source; return how many were moved."""
        returned = self.transit.carry(taken)
        for message in returned:
            self._refuse_used_id(message)
        moved = len(taken) - len(returned)
        self.result.stored += moved
        return moved

    def _refuse_used_id(self, message: Ready) -> None:
        self._refuse(
            message.item.id, f"{self.queue.name} has a message of the id {message.item.id!r}"
        )

    def _readable(self, page: Sequence[SourceEntry], *, taken: bool = False) -> list[Ready]:
        """Return the messages of entries that are to be moved; count the others.

        Args:
            page: the entries.
            taken: an interrupted run has taken them out of the source: they move whatever their
                times are. One that has expired since expires in the store.
        """
        now = self.queue._clock.now()
        ready = []
        for entry, content in zip(page, self._contents(page), strict=True):
            try:
                item = self.source.item(entry, content, now)
            except Pickled:
                self.result.pickled += 1
            except NotTakenOver as error:
                self._refuse(self.source.name(entry), str(error))
            except Gone:
                if not taken:
                    self.result.expired += 1
                elif not self.dry_run:
                    self.transit.drop([entry])
            except Elsewhere:
                continue
            except MALFORMED as error:
                reason = f"it is not as its library writes it ({error!r:.200})"
                self._refuse(self.source.name(entry), reason)
            else:
                due = now if item.at == NOW else item.due(now)
                # `expires` is negative if it ends before it is due.
                has_expired = item.expires is not None and due + item.expires < max(due, now)
                if has_expired and not taken:
                    self.result.expired += 1
                elif item.at == NOW and self.delayed_only and not taken:
                    self.result.waiting += 1
                else:
                    ready.append(Ready(entry, msgspec.structs.replace(item, at=due)))
        return ready

    def _contents(self, page: Sequence[SourceEntry]) -> Iterator[list[Any]]:
        """Yield the replies to the commands of each entry, which are executed in one round trip."""
        commands_by_entry = [self.source.content(entry) for entry in page]
        commands = [command for commands in commands_by_entry for command in commands]
        replies = iter(self.source.redis.ask_all(commands) if commands else [])
        for entry_commands in commands_by_entry:
            yield list(islice(replies, len(entry_commands)))

    def _refuse(self, name: str, reason: str) -> None:
        """Count a message that stays; note why."""
        self.result.refused += 1
        if len(self.result.reasons) < EXAMPLES:
            self.result.reasons[name] = reason

    def _page(self, place: Place, skip: int) -> list[SourceEntry]:
        """Read up to a batch of elements, oldest first, after the first `skip` of them."""
        ask = self.source.redis.ask
        first, last = skip, skip + self.batch - 1
        if place.kind == "zset":
            flat = ask("ZRANGE", place.key, first, last, "WITHSCORES")
            pairs = zip(flat[::2], flat[1::2], strict=True)  # each member, and behind it its score
            return [SourceEntry(place, member, float(score)) for member, score in pairs]
        if place.oldest_last:
            members = ask("LRANGE", place.key, -last - 1, -first - 1)[::-1]  # from the end on
        else:
            members = ask("LRANGE", place.key, first, last)
        return [SourceEntry(place, member) for member in members]
