"""Sentinels: servers that watch a group of others, and know which of them is the master now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redis import exceptions as redis_errors

from bide.engines.redis.dangers import of_sentinels, warn
from bide.engines.redis.faults import Refusal, is_away, is_of_network, no_connection, origin
from bide.engines.redis.wire import ConnectionLost, Wire, pack
from bide.logs import logger
from bide.model.errors import StoreError, StoreUnavailable

PATIENCE = 1.0
"""For how many seconds one sentinel may be silent; then the next one is asked."""

SILENT = 10
"""After so many rounds in which no sentinel answers it is said once."""

Address = tuple[str, int]
"""The host and port of a server; of a Unix socket, its path and 0."""

_log = logger("bide.redis")


_NUMBERS = (
    "port",
    "num-other-sentinels",
    "quorum",
    "config-epoch",
    "down-after-milliseconds",
    "failover-timeout",
)
"""The facts of a sentinel that are needed here as numbers."""


class Sentinel:
    """One sentinel.

    Args:
        place: its address, for errors.
        client: returns what connects, of redis-py.
    """

    def __init__(self, place: str, client: Callable[[], Any]) -> None:
        self.place = place
        self._client = client
        self._idle: list[Wire] = []
        """Connections that no call uses."""

    def ask(self, *commands: tuple[str, ...]) -> list[Any]:
        """Return what the sentinel answers, on a connection that is this call's alone until then.

        Raises:
            RedisError: there is no connection, or it broke.
            OSError: the same.
            Refusal: the sentinel refuses one of the commands.
        """
        packed = b"".join([pack(command) for command in commands])
        while True:
            try:
                wire, was_idle = self._idle.pop(), True
            except IndexError:  # none is there, or another thread has taken the last one
                wire, was_idle = Wire(self._client()), False
                wire.connect()
            if wire.inherited:
                wire.close()
                continue
            try:
                answers = wire.exchange(packed, [b""] * len(commands))
            except ConnectionLost as lost:
                timed_out = isinstance(lost.__cause__, (redis_errors.TimeoutError, TimeoutError))
                if was_idle and not timed_out:
                    continue  # it was closed while it was idle
                raise (lost.__cause__ or lost) from None
            self._idle.append(wire)
            for answer in answers:
                if isinstance(answer, Refusal):
                    raise answer
            return answers

    def close(self) -> None:
        """Close what is idle; the next question opens a connection again."""
        while self._idle:
            self._idle.pop().close()


@dataclass(eq=False)
class Sentinels:
    """The sentinels of a group of servers, which name its master."""

    shown: str
    """The URL without its passwords."""
    name: str
    """Their name of the group."""
    members: list[Sentinel]
    """One that answers is enough."""
    _epoch: int = 0
    """The number of the last fail-over that a sentinel knew of."""
    _silent_rounds: int = 0
    """In how many rounds of `look` in a row no sentinel answered."""

    def master(self) -> Address:
        """Return the host and port of the master.

        Raises:
            StoreUnavailable: none knows; its cause is a `ConnectionError` where that may pass.
        """
        facts = self.facts()
        warn(self.shown, of_sentinels(facts, self.name))
        return _address(facts)

    def facts(self) -> dict[str, Any]:
        """Return what sentinels that know of the last fail-over say of the group.

        Raises:
            StoreUnavailable: see `master`.
        """
        newest, errors = self._ask_all()
        for facts in newest:
            if not _is_down(facts):
                return facts
        refusals = [error for error in errors if not is_away(error)]
        if refusals and not newest:
            raise refusals[0]
        reasons = "; ".join(str(error).removeprefix(f"{self.shown}: ") for error in errors)
        raise StoreUnavailable(
            f"{self.shown}: no sentinel names a master that is up ({reasons or 'it is down'}); are "
            "the sentinels running, are their addresses right, is a failover under way, are there "
            "enough to agree on one?"
        ) from redis_errors.ConnectionError(reasons)

    def doubt(self) -> None:
        """Prefer another sentinel the next time: the last answer was of no use."""
        self.members = [*self.members[1:], self.members[0]]

    def close(self) -> None:
        """Close the connections; the next question opens them again."""
        for sentinel in self.members:
            sentinel.close()

    def look(self) -> frozenset[Address]:
        """Return where the master is, as far as sentinels know; several if they do not agree."""
        newest, _ = self._ask_all()
        self._silent_rounds = 0 if newest else self._silent_rounds + 1
        if self._silent_rounds == SILENT:
            _log.warning(
                "%s: no sentinel answers, so a failover to a master that is not asked yet would go "
                "unnoticed",
                self.shown,
            )
        up = [facts for facts in newest if not _is_down(facts)]
        return frozenset(map(_address, up or newest))

    def _ask_all(self) -> tuple[list[dict[str, Any]], list[StoreError]]:
        """Ask all of them, because one that is cut off with an old master believes in it.

        Returns:
            The answers of those that know of the last fail-over, and why others gave none.
        """
        answers: list[dict[str, Any]] = []
        errors: list[StoreError] = []
        for sentinel in self.members:
            try:
                answers.append(self._ask(sentinel))
            except (redis_errors.RedisError, OSError, Refusal) as error:
                if not is_of_network(error):
                    raise origin(error) from None
                shown = f"{self.shown}: {sentinel.place}"
                store_error = no_connection(error, shown, "this sentinel")
                store_error.__cause__ = error
                errors.append(store_error)
        epoch = max([facts["config-epoch"] for facts in answers], default=0)
        if epoch < self._epoch and len(answers) < len(self.members):
            return [], errors  # the others do not know of the last fail-over
        self._epoch = epoch  # if all agree on a lower one, they were set up again
        return [facts for facts in answers if facts["config-epoch"] == epoch], errors

    def _ask(self, sentinel: Sentinel) -> dict[str, Any]:
        """Return what a sentinel says of the group.

        Raises:
            Exception: see `Sentinel.ask`.
        """
        words_of_master, master_address = sentinel.ask(
            ("SENTINEL", "MASTER", self.name),
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name),
        )
        words = [word.decode(errors="replace") for word in words_of_master]
        facts: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
        facts |= {name: int(facts[name]) for name in _NUMBERS}
        # The facts of the sentinel that leads a fail-over are those of the old master, until all
        # replicas follow the new one; its second answer names the new one.
        if master_address is not None:  # else the sentinel has forgotten the group meanwhile
            host, port = master_address[0].decode(errors="replace"), int(master_address[1])
            if (host, port) != _address(facts):
                facts |= {"ip": host, "port": port, "flags": "master"}
        return facts


def _address(facts: Mapping[str, Any]) -> Address:
    """Return where the master is by what a sentinel says."""
    return facts["ip"], facts["port"]


def _is_down(facts: Mapping[str, Any]) -> bool:
    """Tell whether a sentinel, or enough of them, believe that the master is down."""
    return not {"s_down", "o_down"}.isdisjoint(facts["flags"].split(","))
