"""Calls of scripts on their way: to the server that has their slot, and again if they were lost.

A script that changes something leaves its reply under the mark of its call, beside the data. When
the call is sent again, wherever the data are by then, it finds the reply instead of doing it twice.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec
from redis.exceptions import BusyLoadingError

from bide.engines.redis.calls import CREATING, Call, raised
from bide.engines.redis.carrier import Carrier, Sent
from bide.engines.redis.connection import Lost, check_layout, is_away, pack
from bide.engines.redis.faults import Refusal
from bide.engines.redis.keys import LAYOUT, VERSION, copies, script_keys, slot_of
from bide.engines.redis.nodes import Nodes
from bide.engines.redis.scripts import load_library
from bide.engines.redis.settings import Settings
from bide.model.errors import StoreUnavailable

FIRST = 2.0
"""Seconds for which a store is sought that has not answered yet: it may be starting."""

SPARE = 150
"""Seconds by which a reply outlives the time in which its call may be sent again."""

_HURRIED = ("peek", "claim", "shards")
"""Scripts that wait for no node if there are other shards: a claim goes on without it."""

_decode = msgspec.msgpack.Decoder().decode


class Sender:
    """Sends calls to a store, whatever becomes of connections, servers and slots.

    Args:
        settings: what the URL says.
        lane: the name of the caller.
    """

    def __init__(self, settings: Settings, lane: str) -> None:
        self._settings = settings
        self._library = load_library()
        self._waits = settings.wait_replicas > 0
        self._lane = lane
        self._lifetime = int(settings.reconnect) + SPARE
        self._next = 0
        self.claims: list[tuple[Call, Sent]] = []
        """Claims since the engine cleared this, and as what they were sent."""
        self.interrupted = self.claims.copy()
        """Those of which nobody has heard what they brought, because of an interrupt."""
        self._changes: dict[tuple[str, int], int] = {}
        self.on_lost: Callable[[str, int], None] | None = None
        """Called with a queue and how many changes the store has lost, at least."""
        self.nodes = Nodes(settings)
        self._carrier = Carrier(settings, self.nodes)

    def open(self) -> None:
        """Seek the store, and check the version of its layout.

        Raises:
            StoreError: the store cannot be reached, or is not what bide needs.
        """
        try:
            self._open(time.monotonic() + min(self._settings.reconnect, FIRST))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self.nodes.close()

    def listen(self, on_loss: Callable[[], None]) -> None:
        """From now on the lane is woken; call `on_loss` when a connection was lost."""
        self._carrier.on_loss = on_loss

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
        sent = [Sent(slot_of(each[1]), pack(*each), False, hurried) for each in commands]
        self._carrier.carry(sent)
        return [each.answer for each in sent]

    def send(self, calls: Sequence[Call], now: int | None) -> list[Any]:
        """Send calls, and return what each answered, errors as values.

        Args:
            calls: those of one shard are carried out in their order.
            now: Unix milliseconds to go by; `None`: the clock of the server.
        """
        sent = [self._prepare(call, place, now) for place, call in enumerate(calls)]
        for call, each in zip(calls, sent, strict=True):
            if call.script == "claim":
                self.claims.append((call, each))
        latest, one = self.nodes.latest, self.nodes.topology.address
        if latest is not None and latest.open and latest.address == one and not self._waits:
            # One server where all is well, with less ado: each single put goes this way.
            lost: Lost | None = None
            try:
                latest.post(b"".join(map(attrgetter("packed"), sent)))
                heard = latest.receive(len(sent))
            except Lost as error:
                heard, lost = error.answers, error
            if lost is None and Refusal not in set(map(type, heard)):
                self._carrier.wrote = True
                return self._see(calls, heard)
            self._carrier.hear(latest, sent, heard, lost)
        self._carrier.carry(sent)
        return self._see(calls, [each.answer for each in sent])

    def interrupt(self) -> None:
        """Break off after an interrupt: what is still on its way must not answer the next call."""
        self.nodes.lose_all()
        self.interrupted += self.claims
        self.claims.clear()

    def again(self, call: Call, sent: Sent) -> Any:
        """Send a call again that may have been executed; return what it answered then."""
        sent = replace(sent, again=True, asking=None, done=False)
        self._carrier.carry([sent])
        return self._see([call], [sent.answer])[0]

    def _see(self, calls: Sequence[Call], answers: list[Any]) -> list[Any]:
        """Decode answers, and see by the numbers of changes whether the store lost some."""
        told: dict[tuple[str, int], tuple[int, int]] = {}
        for place, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            if type(answer) is list:
                head = answer[0] = _decode(answer[0])
            elif type(answer) is bytes:
                head = answers[place] = _decode(answer)
            else:  # an error, or nothing
                continue
            shard = call.queue, call.shard
            highest, made = told.get(shard, (0, 0))
            told[shard] = max(head[1], highest), made + (call.script in CREATING)
        for shard, (change, made) in told.items():
            known, self._changes[shard] = self._changes.get(shard, 0), change
            if known and change < known + made and self.on_lost is not None:
                self.on_lost(shard[0], known + made - change)
        return answers

    def _prepare(self, call: Call, place: int, now: int | None) -> Sent:
        """Return a call as it is sent, at a place in its pipeline."""
        keys = script_keys(call.queue, self._lane, call.shard)
        writes = call.script in self._library.writing and not call.reads
        self._next += 1
        packed = pack(
            "FCALL", self._library.functions[call.script], len(keys.names) + 1, *keys.names,
            keys.replay + b"%d" % place, "" if now is None else now, self._next if writes else "",
            self._lifetime, self._lane if self._carrier.on_loss else "",
            call.queue, call.shards, call.shard, *call.args,
        )  # fmt: skip
        hurried = call.script == "decline" or (call.shards != 1 and call.script in _HURRIED)
        return Sent(keys.slot, packed, writes, hurried)

    # Opening.

    def _open(self, deadline: float) -> None:
        shown = self._settings.shown
        while True:
            try:
                if self._settings.cluster is not None:
                    self.nodes.refresh()
                    if self.nodes.topology.masters:
                        break
                    error = StoreUnavailable(
                        f"{shown}: no node of this cluster has any slot: see "
                        "`redis-cli --cluster create`"
                    )
                else:
                    address = self.nodes.topology.owner(0)
                    assert address is not None
                    self.nodes.connection(address)
                    return
            except StoreUnavailable as found:
                if not is_away(found):
                    raise
                error = found
            loading = isinstance(error.__cause__, BusyLoadingError)
            if time.monotonic() > deadline + (self._settings.reconnect if loading else 0):
                raise error
            time.sleep(0.02)
        for hurried, key in itertools.product((True, False), copies(VERSION)):
            try:
                version = self.plain("GET", key, hurried=hurried)
                if version is None:
                    self.plain("SET", key, LAYOUT, "NX", hurried=hurried)
            except StoreUnavailable as found:  # the other copies tell the same
                error = found
                continue
            check_layout(version, shown)
            return
        raise error
