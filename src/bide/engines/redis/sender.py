"""Calls of scripts on their way: to the server that has their slot, and again if they were lost.

A script that changes something leaves its reply under the mark of its call, beside the data. When
the call is sent again, wherever the data are by then, it finds the reply instead of doing it twice.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from bide.engines.bounded_dict import BoundedDict
from bide.engines.redis.calls import CHANGING, Call, load_library, raised
from bide.engines.redis.connection import Lost, check_layout, pack
from bide.engines.redis.faults import Refusal
from bide.engines.redis.layout import LAYOUT, VERSION, copies, script_keys, slot_of
from bide.engines.redis.settings import Settings
from bide.engines.redis.transport import Request, Transport
from bide.model.errors import StoreError, StoreFull, StoreReadOnly

FIRST = 2.0
"""Seconds for which a store is sought that has not answered yet: it may be starting."""

SPARE = 150
"""Seconds by which a reply outlives the time in which its call may be sent again."""

Send = Callable[..., Any]
"""Sends a command whose key is the second word, and returns what comes back."""

_HURRIED = ("peek", "claim", "make")
"""Scripts that wait for no node if there are other shards: a claim goes on without it."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Sender(Transport):
    """Sends calls to a store, also when connections break, and servers or slots change.

    Args:
        settings: what the URL says.
        lane: the name of the caller.

    Raises:
        StoreError: the store cannot be reached, or is not what bide needs.
    """

    def __init__(self, settings: Settings, lane: str) -> None:
        super().__init__(settings)
        self._library = load_library()
        self._lane = lane
        self._lifetime = int(settings.reconnect) + SPARE
        self._numbers = itertools.count(1)
        self.listens = False
        """Whether the caller receives what is published to its channel."""
        self.claims: list[tuple[Call, Request]] = []
        """Claims since the engine cleared this."""
        self._changes: BoundedDict[tuple[str, int], list[int]] = BoundedDict()
        """By queue and shard: the number of its last change, in a list of one."""
        self.on_lost: Callable[[str, int], None] | None = None
        """Called with a queue and the least number of changes that the store has lost."""

    def open(self) -> None:
        """Connect to the store, and check the version of its layout.

        Raises:
            StoreError: the store cannot be reached, or is not what bide needs.
        """
        self._opens_by = time.monotonic() + min(self._settings.reconnect, FIRST)
        try:
            for version in self.each_copy(VERSION, _read_or_set_version):
                check_layout(version, self._settings.shown)
        except BaseException:
            self.nodes.close()
            raise
        self._opens_by = None

    def each_copy(self, key: bytes, do: Callable[[Send, bytes], Any]) -> list[Any]:
        """Do something with each copy of a key that is there; wait for one only if none is.

        Raises:
            StoreError: none is there.
        """
        done: list[Any] = []
        trouble: StoreError | None = None
        for hurried in (True, False) if self.clustered else (False,):
            send = partial(self.plain, hurried=hurried)
            for name in copies(key) if self.clustered else (key,):
                try:
                    done.append(do(send, name))
                except StoreError as error:
                    trouble = error
            if done:
                return done
        assert trouble is not None
        raise trouble

    def plain(self, *command: Any, hurried: bool = False) -> Any:
        """Send a command that may be carried out twice, and return what comes back.

        Args:
            command: the key is its second word.
            hurried: do not wait for a server that is away.

        Raises:
            StoreError: the server cannot be reached, or refuses it.
        """
        (answer,) = raised(self.plain_all([command], hurried=hurried))
        return answer

    def plain_all(self, commands: Sequence[Sequence[Any]], *, hurried: bool) -> list[Any]:
        """Send such commands at once, and return what each answered, errors as values."""
        slots = [slot_of(each[1]) if self.clustered else 0 for each in commands]
        both = zip(slots, commands, strict=True)
        return self.execute([Request(slot, tuple(each), False, hurried) for slot, each in both])

    def send(self, calls: Sequence[Call], now: int | None) -> list[Any]:
        """Send calls, and return what each answered, errors as values.

        Args:
            calls: those of one shard are carried out in their order.
            now: Unix milliseconds to go by; `None`: the clock of the server.
        """
        requests = [self._prepare(call, place, now) for place, call in enumerate(calls)]
        both = zip(calls, requests, strict=True)
        self.claims += [(call, request) for call, request in both if call.script == "claim"]
        only = None if self._settings.wait_replicas else self.nodes.only
        if only is not None:  # the usual case: one server, which answers
            try:
                packed = b"".join([pack(request.command) for request in requests])
                answers = only.exchange(packed, len(requests))
            except Lost as lost:
                self._lose(only, requests, lost)
            else:
                if Refusal not in set(map(type, answers)):
                    for request, answer in zip(requests, answers, strict=True):
                        request.answer, request.done = answer, True
                    self._sought.clear()
                    return self._decoded(calls, answers)
                self._take(only, requests, answers)
        return self._decoded(calls, self.execute(requests))

    def again(self, call: Call, request: Request) -> Any:
        """Return what a call answered; send it again if that is not known.

        If it is known, later calls may have taken the place of the reply.
        """
        if not request.done:
            request.again = True
            return self._decoded([call], self.execute([request]))[0]
        answer = self._answer(request)
        if type(answer) is list and type(answer[0]) is bytes:
            answer[0] = _decode(answer[0])
        return answer

    def _decoded(self, calls: Sequence[Call], answers: list[Any]) -> list[Any]:
        """Return decoded answers; the numbers of changes show whether the store lost some."""
        changes: dict[tuple[str, int], tuple[int, int]] = {}
        for place, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            if type(answer) is list:
                head = answer[0] = _decode(answer[0])
            elif type(answer) is bytes:
                head = answers[place] = _decode(answer)
            else:  # an error, or nothing
                continue
            shard = call.queue, call.shard
            highest, made = changes.get(shard, (0, 0))
            changes[shard] = max(head[1], highest), made + (call.script in CHANGING)
        for shard, (change, made) in changes.items():
            if (last := self._changes.get(shard)) is None:
                self._changes[shard] = [change]
                continue
            self._changes.move_to_end(shard)
            known, last[0] = last[0], change
            if known and change < known + made and self.on_lost is not None:
                self.on_lost(shard[0], known + made - change)
        return answers

    def _prepare(self, call: Call, place: int, now: int | None) -> Request:
        """Return a call as it is sent, at a place in its pipeline."""
        keys = script_keys(call.queue, self._lane, call.shard)
        writes = call.script in self._library.writing and not call.reads
        head = (
            f"{next(self._numbers) if writes else ''} {self._lifetime} {call.shards} "
            f"{self._lane if self.listens else ''} {'' if now is None else now}"
        )
        command = (
            "FCALL", self._library.functions[call.script], str(len(keys.names) + 1), *keys.names,
            keys.replay + b"%d" % place, head, _encode(call.args), *call.rows,
        )  # fmt: skip
        hurried = call.shards > 1 and call.script in _HURRIED
        mark = len(keys.names) + 4 if writes else 0
        slot = keys.slot if self.clustered else 0
        return Request(slot, command, writes, hurried, mark=mark)


def _read_or_set_version(send: Send, key: bytes) -> Any:
    version = send("GET", key)
    if version is None:
        with suppress(StoreReadOnly, StoreFull):  # a server that takes no changes may be read
            send("SET", key, LAYOUT, "NX")
    return version
