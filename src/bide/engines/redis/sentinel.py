"""Sentinels: servers that watch a group of others, and know which of them is the master now."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis import exceptions as raised

from bide.engines.redis.dangers import of_sentinels, warn
from bide.engines.redis.faults import is_away, no_connection
from bide.model.errors import StoreError, StoreUnavailable

PATIENCE = 1.0
"""For how many seconds one sentinel may be silent; then the next one is asked."""

SILENT = 10
"""After so many rounds in which no sentinel answers it is said once."""

Address = tuple[str, int]

_log = logging.getLogger("bide.redis")


@dataclass(eq=False)
class Sentinels:
    """The sentinels of a group of servers, which name its master."""

    shown: str
    """The URL without its passwords."""
    name: str
    """Their name of the group."""
    clients: list[tuple[str, Any]]
    """Their addresses, and a client of each that decodes texts; one that answers is enough."""
    _epoch: int = 0
    _silent: int = 0

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
        newest, troubles = self._ask_all()
        for facts in newest:
            if not _is_down(facts):
                return facts
        if not newest and (refused := [each for each in troubles if not is_away(each)]):
            raise refused[0]
        reasons = "; ".join(str(each).removeprefix(f"{self.shown}: ") for each in troubles)
        raise StoreUnavailable(
            f"{self.shown}: no sentinel names a master that is up ({reasons or 'it is down'}); do "
            "the sentinels run, are their addresses right, is a fail-over under way, are there "
            "enough to agree on one?"
        ) from raised.ConnectionError(reasons)

    def doubt(self) -> None:
        """Prefer another sentinel the next time: the last answer was of no use."""
        self.clients = [*self.clients[1:], self.clients[0]]

    def close(self) -> None:
        """Close the connections; the next question opens them again."""
        for _, client in self.clients:
            client.connection_pool.disconnect(inuse_connections=False)

    def look(self) -> frozenset[Address]:
        """Return where the master is, as far as sentinels know."""
        newest, _ = self._ask_all()
        self._silent = 0 if newest else self._silent + 1
        if self._silent == SILENT:
            _log.warning(
                "%s: no sentinel answers, so that a fail-over to a master which is not asked yet "
                "would go unnoticed", self.shown,
            )  # fmt: skip
        sound = [facts for facts in newest if not _is_down(facts)]
        return frozenset(map(_address, sound or newest))

    def _ask_all(self) -> tuple[list[dict[str, Any]], list[StoreError]]:
        """Ask all of them, because one that is cut off with an old master believes in it.

        Returns:
            The answers of those that know of the last fail-over, and why others gave none.
        """
        answers: list[dict[str, Any]] = []
        troubles: list[StoreError] = []
        for place, client in self.clients:
            try:
                answers.append(self._ask(client))
            except (raised.RedisError, OSError) as error:
                trouble = no_connection(error, f"{self.shown}: {place}", "this sentinel")
                trouble.__cause__ = error
                troubles.append(trouble)
        epoch = max([facts["config-epoch"] for facts in answers], default=0)
        if epoch < self._epoch and len(answers) < len(self.clients):
            return [], troubles  # the others do not know of the last fail-over
        self._epoch = epoch  # if all agree on a lower one, they were set up again
        return [facts for facts in answers if facts["config-epoch"] == epoch], troubles

    def _ask(self, client: Any) -> dict[str, Any]:
        """Return what a sentinel says of the group."""
        facts: dict[str, Any] = client.sentinel_master(self.name)
        # The one that leads a failover says there where the old master is, until all others follow
        # the new one.
        named = client.sentinel_get_master_addr_by_name(self.name)  # `None`: it has forgotten it
        if named not in (None, _address(facts)):
            facts |= {"ip": named[0], "port": named[1], "is_sdown": False, "is_odown": False}
        return facts


def _address(facts: Mapping[str, Any]) -> Address:
    return facts["ip"], facts["port"]


def _is_down(facts: Mapping[str, Any]) -> bool:
    return bool(facts["is_sdown"] or facts["is_odown"])
