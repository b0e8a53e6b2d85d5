"""Sentinels: servers that watch a group of others, and know which of them is the master now."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from redis import exceptions as raised
from redis.connection import SSLConnection

from bide.engines.redis.dangers import of_sentinels, warn
from bide.engines.redis.faults import fix_of
from bide.model.errors import StoreError, StoreUnavailable

PATIENCE = 1.0
"""For how many seconds one sentinel may be silent; then the next one is asked."""

SILENT = 10
"""After so many rounds in which no sentinel answers it is said once."""

Address = tuple[str, int]

CHECK = 1.0
"""How often, in seconds, the sentinels are asked."""

Kept = dict[Address, Any]
"""By host and port of a sentinel: the connection to it, kept from round to round."""

Told = Callable[[frozenset[Address]], None]
"""Told in each round where the master is: host and port, mostly one."""

_log = logging.getLogger("bide.redis")


class Watch:
    """A thread that asks every so often where the master is, as long as anybody wants to be told.

    A master that was cut off from the others goes on answering whoever reaches it. A process that
    waits for nothing would work there for ever: no connection breaks, and nobody tells it anything.

    Args:
        look: asks once, on connections that are kept; returns where the master is, as far as that
            is known. It raises nothing.
    """

    def __init__(self, look: Callable[[Kept], frozenset[Address]]) -> None:
        self._look = look
        self._fresh()

    def _fresh(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._listeners: tuple[Told, ...] = ()
        self._ended = threading.Event()

    def add(self, told: Told) -> None:
        """Call `told` after each round from now on, in a thread of its own."""
        if self._process != os.getpid():  # a fork has no thread, and who listened is the parent's
            self._fresh()
        with self._lock:
            if not self._listeners:
                self._ended = threading.Event()
                thread = threading.Thread(
                    target=self._run, args=(self._ended,), name="bide-sentinel", daemon=True
                )
                thread.start()
            self._listeners = (*self._listeners, told)

    def remove(self, told: Told) -> None:
        """Call it no longer, but for a round that is under way."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != told)
            if not self._listeners:
                self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        kept: Kept = {}
        while not ended.wait(CHECK):
            if masters := self._look(kept):
                for told in self._listeners:
                    told(masters)
        for connection in kept.values():
            connection.disconnect()


class Sentinels:
    """Those whom one asks for the master of a group.

    Args:
        shown: the URL without its passwords.
        name: what they call the group.
        addresses: where they are; any that answers will do.
        kind: the class of connections to them.
        arguments: how to connect to each, but for host and port.
    """

    def __init__(
        self,
        shown: str,
        name: str,
        addresses: list[Address],
        kind: type[Any],
        arguments: dict[str, Any],
    ) -> None:
        self._shown = shown
        self.name = name
        self._addresses = tuple(addresses)
        self._kind = kind
        self._arguments = arguments
        self._epoch = 0
        self._silent = 0
        self._warned = False
        self.watch = Watch(self._look)
        """Tells in which place the master is, again and again."""

    def master(self) -> Address:
        """Return the host and port of the master, as the first that knows one says.

        Raises:
            StoreUnavailable: none knows; its cause is a `ConnectionError` where that may pass.
        """
        troubles: list[str] = []
        refusal: StoreError | None = None
        behind: list[dict[str, str]] = []
        for address in self._addresses:
            shown = f"{address[0]}:{address[1]}"
            try:
                facts = self._ask(address)
            except (raised.RedisError, OSError) as error:
                refusal = refusal or self._refusal(shown, error)
                troubles.append(f"{shown}: {str(error).rstrip('.')}")
                continue
            if _is_down(facts):
                troubles.append(f"{shown}: the master {_place(facts)} is down")
                continue
            if _epoch(facts) < self._epoch:  # it may be cut off together with an old master
                behind.append(facts)
                troubles.append(f"{shown}: it has not heard of the last fail-over")
                continue
            self._epoch = _epoch(facts)
            if not self._warned:
                self._warned = True
                warn(self._shown, of_sentinels(facts, self.name))
            self._addresses = (address, *(each for each in self._addresses if each != address))
            return facts["ip"], int(facts["port"])
        if len(behind) == len(self._addresses):  # they were set up anew
            facts = max(behind, key=_epoch)
            self._epoch = _epoch(facts)
            return facts["ip"], int(facts["port"])
        if refusal is not None:
            raise refusal
        told = "; ".join(troubles)
        raise StoreUnavailable(
            f"{self._shown}: no sentinel names a master ({told}); do the sentinels run, are their "
            "addresses right, is a fail-over under way, are enough of them left to agree on one?"
        ) from raised.ConnectionError(told)

    def facts(self) -> dict[str, str]:
        """Return what the sentinel that named the master says of the group: its settings."""
        return self._ask(self._addresses[0])

    def doubt(self) -> None:
        """Ask another one first the next time: what was said last was of no use."""
        first, *others = self._addresses
        self._addresses = (*others, first)

    def _look(self, kept: Kept) -> frozenset[Address]:
        """Ask all of them; return where the master is by those who know of the last fail-over.

        One that is cut off together with an old master believes in it, so the first is not enough.
        """
        told: list[dict[str, str]] = []
        for address in self._addresses:
            try:
                told.append(self._ask(address, kept))
            except (raised.RedisError, OSError):
                kept.pop(address, None)
        self._silent = 0 if told else self._silent + 1
        if self._silent == SILENT:
            _log.warning(
                "%s: no sentinel answers, so that a fail-over to a master which is not asked yet "
                "would go unnoticed", self._shown,
            )  # fmt: skip
        epoch = max((_epoch(facts) for facts in told), default=0)
        if epoch < self._epoch and len(told) < len(self._addresses):
            return frozenset()  # who knows more is away; if all agree, they were set up anew
        self._epoch = epoch
        newest = [facts for facts in told if _epoch(facts) == epoch]
        sound = [facts for facts in newest if not _is_down(facts)]
        return frozenset((facts["ip"], int(facts["port"])) for facts in sound or newest)

    def _ask(self, address: Address, kept: Kept | None = None) -> dict[str, str]:
        """Ask one of them; keep the connection if it is said where."""
        connection = kept.get(address) if kept is not None else None
        connection = connection or self._kind(host=address[0], port=address[1], **self._arguments)
        answer = None
        try:
            connection.send_command("SENTINEL", "MASTER", self.name)
            answer = connection.read_response(disable_decoding=True)
        finally:
            if kept is None or answer is None:
                connection.disconnect()
            else:
                kept[address] = connection
        words = [word.decode(errors="replace") for word in answer]
        return dict(zip(words[::2], words[1::2], strict=True))

    def _refusal(self, shown: str, error: Exception) -> StoreError | None:
        """Return why a sentinel does not tell, unless that may pass by itself."""
        text = str(error)
        fix = fix_of(error, encrypted=issubclass(self._kind, SSLConnection))
        if fix is not None:
            pass
        elif "No such master" in text:
            fix = f"the sentinels watch nothing by the name of {self.name!r}"
        elif "unknown command" in text:
            fix = "this is no sentinel, but perhaps a server: sentinels mostly listen on 26379"
        elif "Authentication required" in text or "NOAUTH" in text:
            fix = (
                "the sentinels want a password of their own: ?sentinel_password=... (and "
                "sentinel_user=...); what stands before the @ is for the servers"
            )
        elif isinstance(error, raised.AuthenticationError):
            fix = "sentinel_user or sentinel_password is wrong"
        elif isinstance(error, raised.NoPermissionError) or "NOPERM" in text:
            fix = "this user may not ask the sentinels: its ACL there needs +sentinel|master"
        elif "protected mode" in text:
            fix = "this sentinel is in protected mode: give it a password or a bind address"
        elif isinstance(error, raised.ResponseError) or _refused(error):
            fix = "this sentinel refuses to answer"
        else:
            return None
        refusal = StoreUnavailable(f"{self._shown}: {shown}: {fix} ({text})")
        refusal.__cause__ = error if isinstance(error, raised.ResponseError) else None
        return refusal


def _place(facts: Mapping[str, str]) -> str:
    return f"{facts['ip']}:{facts['port']}"


def _is_down(facts: Mapping[str, str]) -> bool:
    return not {"s_down", "o_down"}.isdisjoint(facts.get("flags", "").split(","))


def _epoch(facts: Mapping[str, str]) -> int:
    """Return which fail-over was the last that a sentinel has heard of."""
    return int(facts.get("config-epoch", 0))


def _refused(error: Exception) -> bool:
    """Tell whether the other side gave a reason why it hung up."""
    return isinstance(error.__cause__, raised.ResponseError) or "DENIED" in str(error)
