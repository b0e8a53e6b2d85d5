"""Faults of the network before PostgreSQL: no false answer, no dead thread."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from bide.model.errors import OutcomeUnknown, StoreUnavailable
from tests.effort import effort
from tests.faults.ledger import Ledger
from tests.faults.strikes import Struck
from tests.postgres_server import PostgresServer
from tests.proxy import Faults, Proxy

R = TypeVar("R")


class Unanswered:
    """Takes calls that have no answer, and says so, for such that were interrupted."""

    hits = 0

    def during(self, call: Callable[[], R]) -> R | Struck:
        try:
            return call()
        except (OutcomeUnknown, StoreUnavailable):
            self.hits += 1
            return Struck.STRUCK


@pytest.mark.process
def test_faults_of_the_network(
    postgres: PostgresServer,
    postgres_url: Callable[[], str],
    proxy_before: Callable[[str | int], Proxy],
) -> None:
    schema = postgres_url().rpartition("&schema=")[2]
    proxy = proxy_before(f"{postgres.folder}/.s.PGSQL.5432")
    address = f"postgresql://bide@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    ledger = Ledger(f"{address}&schema={schema}&reconnect=60s", Unanswered())
    faults = Faults(0.05, ("cut", "reset", "half", "lose", "crumbs"), seed=1)
    ledger.turn()
    proxy.faults = faults
    while sum(faults.counts.values()) < effort(200, 2_000):
        ledger.turn()
    proxy.faults = None
    assert ledger.problems() == []
