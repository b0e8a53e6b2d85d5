"""Calls of scripts on their way: to the server that has their slot, and again if they were lost.

A script that changes something leaves its reply under the mark of its call, beside the data. When
the call is sent again, wherever the data are by then, it finds the reply instead of doing it twice.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from bide.engines.bounded_dict import BoundedDict
from bide.engines.port import Identity
from bide.engines.redis.calls import CHANGING, LIBRARY, ScriptCall
from bide.engines.redis.connection import check_layout
from bide.engines.redis.constants import DELETED_KEEP
from bide.engines.redis.layout import (
    LAYOUT,
    RULED_LAYOUT,
    VERSION,
    Word,
    copies,
    packed_values,
    replay_key,
    script_keys,
    sender_keys,
    slot_of,
)
from bide.engines.redis.settings import RedisSettings
from bide.engines.redis.transport import ServerCommand, Transport
from bide.engines.redis.wire import PackedWords, pack_first
from bide.model.errors import StoreError

FIRST_WAIT = 2.0
"""Seconds for which a store is sought that has not answered yet: it may be starting."""

SPARE = 150
"""Seconds by which a reply outlives the time in which its call may be sent again."""

_HURRIED = ("peek", "claim", "make")
"""Scripts that wait for no node if there are other shards: a claim goes on without it."""


class CallSender(Transport):
    """Sends calls to a store, also when connections break, and servers or slots change.

    Args:
        settings: what the URL says.
        lane: the name of the caller.
        on_lost: called with a queue and the least number of changes that the store has lost.

    Raises:
        StoreError: the store cannot be reached, or is not what bide needs.
    """

    def __init__(
        self, settings: RedisSettings, lane: str, on_lost: Callable[[str, int], None]
    ) -> None:
        super().__init__(settings)
        self._library = LIBRARY
        self._lane = lane
        self._lifetime = int(settings.reconnect) + SPARE
        """For how many seconds the store keeps the reply to a call."""
        self._numbers = itertools.count(1)
        """Of calls: an answer says which one it answers."""
        self.listens = False
        """Whether the caller receives what is published to its channel."""
        self.claims: list[tuple[ScriptCall, ServerCommand]] = []
        """Calls of claims whose replies no caller has got yet: the engine clears this."""
        self._last_changes: BoundedDict[tuple[str, int], list[int]] = BoundedDict()
        """By queue and shard: the store's clock at its last answer, in Unix milliseconds, and the
        number of its last change then; 0: it did not exist."""
        self._on_lost = on_lost

    def open(self) -> None:
        """Connect to the store, and check the version of its layout; write it to a new store.

        This waits less long for a server that is away than later calls do.

        Raises:
            StoreError: the store cannot be reached, or is not what bide needs.
        """
        self._limit = min(self._settings.reconnect, FIRST_WAIT)
        slots = map(slot_of, copies(VERSION)) if self.clustered else [0]
        self._waiting_since = dict.fromkeys(slots, time.monotonic())
        try:
            versions = self.each_copy("GET", VERSION)
            for version in versions:
                check_layout(version, self._settings.shown)
            if None in versions:
                with suppress(StoreError):  # a server that takes no changes may be read
                    self.each_copy("SET", VERSION, LAYOUT, "NX")
        except BaseException:
            self.nodes.close()
            raise
        self._limit = self._settings.reconnect

    def note_repeating(self) -> None:
        """Note that the store has messages that repeat: a bide that cannot read them refuses it.

        Raises:
            StoreError: the store cannot be reached, or takes no changes.
        """
        self.each_copy("SET", VERSION, RULED_LAYOUT)

    def each_copy(self, name: str, key: bytes, *arguments: Any) -> list[Any]:
        """Send a command to each server with a copy of a key; return the answers that arrive.

        If at least one server answers, this does not wait for those that are away.

        Raises:
            StoreError: no server answers.
        """
        keys = copies(key) if self.clustered else (key,)
        commands = [(name, each, *arguments) for each in keys]
        for hurried in (True, False) if self.clustered else (False,):
            answers = self.plain(commands, hurried=hurried)
            good_answers = [answer for answer in answers if not isinstance(answer, StoreError)]
            if good_answers:
                return good_answers
        raise answers[-1]

    def plain(self, commands: Sequence[Sequence[Any]], *, hurried: bool = False) -> list[Any]:
        """Send commands that may be carried out twice; return what comes back, errors as values.

        Args:
            commands: the key is the second word of each.
            hurried: do not wait for a server that is away.
        """
        requests = []
        for words in commands:
            slot = slot_of(words[1]) if self.clustered else 0
            requests.append(ServerCommand(slot, tuple(words), writes=False, hurried=hurried))
        return self.execute(requests)

    def send(self, calls: Sequence[ScriptCall], now: int | None) -> list[Any]:
        """Send calls, and return what each answered, errors as values.

        Args:
            calls: those of one shard are carried out in their order.
            now: Unix milliseconds to go by; `None`: the clock of the server.
        """
        requests = []
        for place, call in enumerate(calls):
            request = self._prepare(call, place, now)
            requests.append(request)
            if call.script == "claim":
                self.claims.append((call, request))
        answers = self.execute(requests)
        self._note_changes(calls, answers)
        return answers

    def answer_or_resend(self, request: ServerCommand) -> Any:
        """Return the answer to a call; send the call again if the answer is not known.

        Even if it is known, later calls may have taken its place among the stored replies.
        """
        request.again = not request.done
        if request.again:
            self.execute([request])
        return self.result_of(request)

    def _note_changes(self, calls: Sequence[ScriptCall], answers: Sequence[Any]) -> None:
        """Read from the numbers of changes whether the store has lost some.

        A number grows with each change of a shard. One that is smaller than before is of a server
        that lacks changes: a replica that took over, or one that was restarted. But the number of
        a deleted queue is kept for a while only: after that, one that is made again begins anew.
        """
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, StoreError):
                continue
            head = answer[0] if type(answer[0]) is list else answer
            now, change = head[:2]
            latest = [now, max(change, 0)]  # of a queue that is deleted, the next one is not known
            shard = call.queue, call.shard
            last = self._last_changes.get(shard)
            if last is None:
                self._last_changes[shard] = latest
                continue
            last_now, last_change = last
            if call.identity is not None and (now, change) <= (last_now, last_change):
                continue  # perhaps the reply to a try that was long ago
            self._last_changes.move_to_end(shard)
            least = last_change + (1 if call.script in CHANGING else 0)
            is_kept = last_change > 0 and now - last_now < DELETED_KEEP
            if is_kept and abs(change) < least:
                self._on_lost(call.queue, least - abs(change))
            last[:] = latest

    def _prepare(self, call: ScriptCall, place: int, now: int | None) -> ServerCommand:
        """Return a call as it is sent, at a place in its pipeline."""
        script, queue, shard = call.script, call.queue, call.shard
        writes = script in self._library.writing and not call.reads
        identity = call.identity if writes else None
        number = next(self._numbers)
        mark, label = str(number), b"%d " % number
        if identity is None:
            slot, first = _first_words(script, queue, shard, self._lane, place)
        else:
            # One server remembers a sender for all queues; in a cluster, each shard does.
            kept_in = shard if self.clustered else None
            slot, first = _first_words_identified(
                script, queue, shard, identity.sender, identity.owner, kept_in
            )
            mark = f"{mark} {_identity_words(call, identity)}"
        lifetime = self._lifetime if writes else 0
        lane = self._lane if self.listens else ""
        values = packed_values((lifetime, call.shards, lane, now, *call.args))
        return ServerCommand(
            slot=slot if self.clustered else 0,
            words=(mark, values, *call.rows),
            writes=writes,
            hurried=call.shards > 1 and script in _HURRIED,
            first=first,
            label=label,
        )


@lru_cache(1024)
def _first_words(
    script: str, queue: str, shard: int, lane: str, place: int
) -> tuple[int, PackedWords]:
    """Return the slot of a call, and its words in front of the mark."""
    return _call_of(script, queue, shard, [replay_key(queue, shard, lane, place)])


@lru_cache(1024)
def _first_words_identified(
    script: str, queue: str, shard: int, sender: str, owner: str, kept_in: int | None
) -> tuple[int, PackedWords]:
    """Return the same of a call whose command has an identity."""
    return _call_of(script, queue, shard, sender_keys(sender, owner, queue, kept_in))


def _call_of(
    script: str, queue: str, shard: int, reply_keys: list[bytes]
) -> tuple[int, PackedWords]:
    """Return the same, with the keys under which the store keeps the reply."""
    keys = [*script_keys(queue, shard), *reply_keys]
    words: tuple[Word, ...] = "FCALL", LIBRARY.functions[script], str(len(keys)), *keys
    return slot_of(keys[0]), pack_first(words)


def _identity_words(call: ScriptCall, identity: Identity) -> str:
    """Return what a script is told of the identity of its command: see lua/_prelude.lua."""
    place = f"{identity.place}.{call.script}#{call.shard}.{call.turn}"
    return f"{identity.number} {identity.repeated:d} {place}"
