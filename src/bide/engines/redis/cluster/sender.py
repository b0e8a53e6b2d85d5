"""Calls of scripts to a cluster: each to the node that has its shard, wherever that goes to."""

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions as raised

from bide.engines.redis.cluster.nodes import Nodes
from bide.engines.redis.cluster.sent import Sent
from bide.engines.redis.cluster.slots import copies, slot_of
from bide.engines.redis.faults import passes, translate
from bide.engines.redis.keys import VERSION, meta_key, probe_key, script_keys
from bide.engines.redis.link import LAYOUT, Link, Lost, is_away, pack, refuse_newer
from bide.engines.redis.marks import Marks
from bide.engines.redis.scripts import FETCHES, Fetch, Script, load_all
from bide.engines.redis.settings import Address, Settings
from bide.engines.redis.verbs import Call
from bide.model.errors import OutcomeUnknown, StoreError, StoreReadOnly, StoreUnavailable

__all__ = ["ClusterSender"]

FIRST = 2.0
"""For how many seconds a cluster is sought at most that has not answered yet."""

PROBE_MS = 200
"""How long replicas that were missing have to show that they are back."""

_HURRIED = ("survey", "claim", "decline", "shards")
"""Scripts that wait for no node if there are other shards: a claim goes on without it."""

_log = logging.getLogger("bide.redis")


class ClusterSender:
    """Sends calls to the nodes of a cluster, whatever becomes of nodes and slots.

    Args:
        settings: the nodes that the URL names.
        lane: the name of who calls.

    Raises:
        StoreError: no node can be reached, or they are not what bide needs.
    """

    def __init__(self, settings: Settings, lane: str) -> None:
        self._settings = settings
        self._scripts: dict[str, Script | Fetch] = {**load_all(), **FETCHES}
        self._lane = lane
        self._keys: dict[tuple[str, str], tuple[int, list[bytes]]] = {}
        self._marks = Marks(settings.reconnect)
        self._short: dict[Address, float] = {}
        self._given_up: set[int] = set()
        self._renewed: Callable[[str], None] | None = None
        self.nodes = Nodes(settings)
        try:
            self._open(time.monotonic() + min(settings.reconnect, FIRST))
        except BaseException:
            self.close()
            raise

    def _open(self, deadline: float) -> None:
        while True:
            try:
                self.nodes.refresh()
            except StoreUnavailable as error:
                if not is_away(error) or time.monotonic() > deadline:
                    raise
            if self.nodes.slots.masters:
                break
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self._settings.shown}: no node of this cluster has any slot: see "
                    "`redis-cli --cluster create`"
                )
            time.sleep(0.02)
        trouble: StoreError | None = None
        for hurried, key in itertools.product((True, False), copies(VERSION)):
            try:
                version = self.plain("GET", key, hurried=hurried)
                if version is None:
                    self.plain("SET", key, LAYOUT, "NX", hurried=hurried)
            except StoreUnavailable as error:  # the other copies tell the same
                trouble = error
                continue
            refuse_newer(version, self._settings.shown)
            return
        assert trouble is not None
        raise trouble

    def close(self) -> None:
        """Close all connections."""
        self.nodes.close()

    def listen(self, renewed: Callable[[str], None]) -> None:
        """From now on the lane can be told of changes; call `renewed` when slots have moved."""
        self._renewed = renewed

    def plain(self, *command: Any, hurried: bool = False) -> Any:
        """Send a command about one key that may be sent twice, and return what comes back.

        Args:
            command: the key is its second word.
            hurried: not to wait for a node that is away.

        Raises:
            StoreError: the node that has the key cannot be reached, or refuses it.
        """
        packed = pack(*command)
        key = command[1] if isinstance(command[1], bytes) else str(command[1]).encode()
        sent = Sent(slot_of(key), lambda _: packed, False, hurried, b"")
        self._carry([sent])
        if isinstance(sent.answer, StoreError):
            raise sent.answer
        if isinstance(sent.answer, raised.RedisError):
            raise translate(sent.answer, self._settings.shown) from sent.answer
        return sent.answer

    def send(
        self, calls: Sequence[Call], now: int | None, before: Sequence[bytes] = ()
    ) -> list[Any]:
        """Send at most as many calls as a lane has slots; return what each answered.

        A script that changes something leaves its answer under the mark of its call, beside the
        data. When it is sent again, wherever the data have gone to, it finds the answer there.
        """
        assert not before, "what belongs to no queue goes to other nodes"
        first = self._marks.reserve(len(calls))
        sent = [self._prepare(call, first + i, i, now) for i, call in enumerate(calls)]
        self._carry(sent)
        return [each.answer for each in sent]

    def _prepare(self, call: Call, number: int, place: int, now: int | None) -> Sent:
        label, script = call.label, self._scripts[call.script]
        if (call.script, label) not in self._keys:
            keys = script_keys(call.script, call.queue, self._lane, call.shard)
            self._keys[call.script, label] = slot_of(meta_key(call.queue, call.shard)), keys
        slot, keys = self._keys[call.script, label]
        lane = self._lane if self._renewed else ""

        def packed(again: bool) -> bytes:
            mark = self._marks.text(number, place, label, writes=script.writes, again=again)
            at = "" if now is None else now
            return pack(*script.command(keys, at, mark, lane, label, *call.args))

        probe = probe_key(call.queue, call.shard)
        hurried = call.script in _HURRIED and call.shards != 1
        return Sent(slot, packed, script.writes, hurried, probe)

    # Carrying.

    def _carry(self, sent: Sequence[Sent]) -> None:
        """Send to all nodes at once, and again what was sent to the wrong one or lost."""
        deadline: float | None = None
        pause = 0.005
        while True:
            groups: dict[Address, list[Sent]] = {}
            for each in sent:
                if not each.done and (address := self._place(each)) is not None:
                    groups.setdefault(address, []).append(each)
            posted = [
                (address, link, group, commands)
                for address, group in groups.items()
                if (link := self._ready(address, group)) is not None
                and (commands := self._post(address, link, group))
            ]
            told = [(posting, self._receive(*posting)) for posting in posted]
            for (address, _, group, _), reached in told:  # all has been read: links can be used
                if reached is not None:
                    self._confirm(address, group, reached)
            left = [each for each in sent if not each.done]
            if not left:
                return
            now = time.monotonic()
            if deadline is None:
                deadline = now + self._settings.reconnect
            moved = self._refresh()
            for each in left:
                each.tries += 1
                if now > deadline:
                    self._given_up.add(each.slot)
                    self._give_up(each)
                elif self._is_hopeless(each) and (each.tries > 2 or (each.away and not moved)):
                    self._give_up(each)
            if all(each.done for each in sent):
                return
            if not moved and not all(isinstance(each.answer, raised.AskError) for each in left):
                time.sleep(pause)
                pause = min(2 * pause, 0.2)

    def _place(self, each: Sent) -> Address | None:
        if each.asking is not None:
            return each.asking
        address = self.nodes.slots.owner(each.slot)
        if address is None:
            each.answer = StoreUnavailable(
                f"{self._settings.shown}: no node of the cluster has slot {each.slot}: see "
                "`redis-cli --cluster check`"
            )
        return address

    def _is_hopeless(self, each: Sent) -> bool:
        """Tell whether nobody is there to do it, and this is not to wait for anybody."""
        away = isinstance(each.answer, (StoreError, raised.ClusterDownError))
        if each.hurried:
            return away or passes(each.answer) or isinstance(each.answer, raised.TryAgainError)
        return away and each.slot in self._given_up

    def _give_up(self, each: Sent) -> None:
        each.done = True
        if isinstance(each.answer, raised.RedisError):
            error = translate(each.answer, self._settings.shown)
            error.__cause__ = each.answer
            each.answer = error
        if each.again and each.writes and not each.hurried:
            each.answer = OutcomeUnknown(
                f"{self._settings.shown}: the connection was lost after the command was sent, and "
                f"it may have been carried out or not ({each.answer})"
            )

    def _ready(self, address: Address, group: Sequence[Sent]) -> Link | None:
        """Return a connection, or put down why there is none."""
        try:
            link = self.nodes.link(address)
        except StoreError as error:
            for each in group:
                each.answer, each.asking, each.away = error, None, True
            return None
        short = self._short.get(address)
        if short is not None and any(each.writes for each in group):
            missing = self._missing(address, link, group)
            if missing is not None:
                for each in group:
                    if each.writes and not each.again:
                        each.answer, each.done = missing, True
        return link

    def _post(self, address: Address, link: Link, group: list[Sent]) -> int:
        """Send what a node is asked; return how many commands that are."""
        group[:] = [each for each in group if not each.done]
        packed = []
        for each in group:
            if each.asking is not None:
                packed.append(pack("ASKING"))
            packed.append(each.packed(each.again))
        if self._waits(group):
            wanted, patience = self._settings.wait_replicas, int(self._settings.timeout * 900)
            packed.append(pack("WAIT", wanted, patience))
        try:
            if packed:
                link.post(packed)
        except Lost as lost:
            self._lost(address, group, lost)
            return 0
        return len(packed)

    def _waits(self, group: Sequence[Sent]) -> bool:
        return self._settings.wait_replicas > 0 and any(each.writes for each in group)

    def _receive(self, address: Address, link: Link, group: list[Sent], commands: int) -> Any:
        """Read what a node answers; return how many replicas have it, if that was asked."""
        waits = self._waits(group)
        lost: Lost | None = None
        try:
            told = link.receive(commands)
        except Lost as broken:
            # What a node has said that has died since, and no replica has, is not so.
            lost, told = broken, [] if waits else broken.answers
        reached = told.pop() if waits and lost is None else None
        answers = iter(told)
        unheard: list[Sent] = []
        forgotten = False
        for each in group:
            asked, each.asking = each.asking, None
            if asked is not None:
                next(answers, None)
            try:
                answer = next(answers)
            except StopIteration:
                unheard.append(each)
                continue
            forgotten = forgotten or isinstance(answer, raised.NoScriptError)
            self._judge(each, address, answer)
        if lost is not None:
            self._lost(address, unheard, lost)
        elif forgotten:
            try:
                link.reload()
            except Lost:
                self.nodes.lost(address)
        return reached

    def _judge(self, each: Sent, asked: Address, answer: Any) -> None:
        """See whether an answer is one, or says where or when to ask again."""
        each.answer = answer
        if isinstance(answer, raised.AskError):  # MOVED is one of them
            to = (answer.host or asked[0], answer.port)
            if isinstance(answer, raised.MovedError):
                _log.debug("slot %d has moved to %s:%d (MOVED)", each.slot, *to)
                self.nodes.slots.moved(each.slot, to)
            else:
                _log.debug("slot %d is moving to %s:%d (ASK)", each.slot, *to)
                each.asking = to
        elif isinstance(answer, raised.TryAgainError):
            _log.debug("slot %d is on its way to another node (TRYAGAIN)", each.slot)
        elif isinstance(answer, raised.ClusterDownError):
            _log.debug("slot %d is served by nobody (CLUSTERDOWN)", each.slot)
        elif isinstance(answer, (raised.NoScriptError, raised.ReadOnlyError)) or passes(answer):
            _log.debug("slot %d: %s", each.slot, answer)
        else:
            each.done = True
            self._given_up.discard(each.slot)

    def _lost(self, address: Address, group: Sequence[Sent], lost: Lost) -> None:
        self.nodes.lost(address)
        error = StoreUnavailable(
            f"{self._settings.shown}: the connection to the node {address[0]}:{address[1]} was "
            f"lost ({lost.cause}); is it running, and has it a replica to take its place?"
        )
        error.__cause__ = lost.cause
        for each in group:
            each.answer, each.again, each.asking, each.away = error, True, None, False

    def _refresh(self) -> bool:
        """Look who has what; return whether that has changed."""
        try:
            changed = self.nodes.refresh()
        except StoreError as error:
            _log.debug("nobody tells the map of the cluster (%s)", error)
            return False
        if changed and self._renewed is not None:
            self._renewed("")
        return changed

    # Replicas.

    def _confirm(self, address: Address, group: Sequence[Sent], reached: Any) -> None:
        """See that enough replicas have what was changed."""
        wanted = self._settings.wait_replicas
        if isinstance(reached, int) and reached >= wanted:
            return
        changed = [
            each for each in group if each.writes and each.done
            and not isinstance(each.answer, Exception)
        ]  # fmt: skip
        if not changed:
            return
        self._refresh()
        for each in changed:
            if self.nodes.slots.owner(each.slot) != address:  # it was put down meanwhile
                each.done, each.again = False, True
                continue
            self._short[address] = 0.0
            each.answer = OutcomeUnknown(
                f"{self._settings.shown}: the node {address[0]}:{address[1]} has it, but only "
                f"{reached} of the {wanted} replicas that wait_replicas asks for confirmed it in "
                "time; a fail-over now may lose it"
            )

    def _missing(self, address: Address, link: Link, group: Sequence[Sent]) -> StoreError | None:
        """Return what to say if replicas that were missing are not back; nothing is done then."""
        wanted = self._settings.wait_replicas
        probe = next(each.probe for each in group if each.writes)
        if time.monotonic() > self._short[address] + 1.0:
            try:
                _, reached = link.exchange(
                    [pack("SET", probe, "", "PX", 1000), pack("WAIT", wanted, PROBE_MS)]
                )
            except Lost:
                return None  # the calls themselves will find out
            if not isinstance(reached, int) or reached >= wanted:
                del self._short[address]
                return None
            self._short[address] = time.monotonic()
        return StoreReadOnly(
            f"{self._settings.shown}: fewer than the {wanted} replicas that wait_replicas asks for "
            f"keep up with the node {address[0]}:{address[1]}, so nothing was changed there; bring "
            "them back, or ask for fewer"
        )
