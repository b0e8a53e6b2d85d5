"""A network with faults before a server, a Sentinel group and a cluster: no answer is false."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import get_args

import pytest

from tests.cluster import RedisCluster
from tests.effort import effort, one_in
from tests.proxy import Fault, Faults, Proxy, before_all
from tests.sentinels import NAME, SentinelGroup
from tests.servers import RedisServer, free_port
from tests.system.faults.ledger import Ledger
from tests.system.faults.network import Doubts

pytestmark = pytest.mark.process

TURNS = effort(100, 600)
SHARE = 0.02
"""Of requests and answers that meet a fault."""

OPTIONS = "timeout=400ms&reconnect=3s"


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, Sequence[Proxy]]]:
    server = RedisServer(folder, port=free_port())
    proxies = before_all([server.port])
    try:
        yield f"{proxies[server.port].url}?{OPTIONS}", [*proxies.values()]
    finally:
        close(proxies.values())
        server.stop()


@contextmanager
def sentinels(folder: Path) -> Iterator[tuple[str, Sequence[Proxy]]]:
    group = SentinelGroup(folder)
    watchers = [int(host.rpartition(":")[2]) for host in group.hosts.split(",")]
    proxies = before_all([*watchers, *(server.port for server in group.servers)])
    hosts = ",".join(f"127.0.0.1:{proxies[port].port}" for port in watchers)
    try:
        yield f"redis+sentinel://{hosts}/{NAME}?wait_replicas=1&{OPTIONS}", [*proxies.values()]
    finally:
        close(proxies.values())
        group.stop()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, Sequence[Proxy]]]:
    cluster = RedisCluster(folder, replicas=1)
    proxies = before_all([server.port for server in cluster.servers])
    hosts = ",".join(f"127.0.0.1:{proxies[each.port].port}" for each in cluster.masters[:2])
    try:
        yield f"redis+cluster://{hosts}?shards=4&wait_replicas=1&{OPTIONS}", [*proxies.values()]
    finally:
        close(proxies.values())
        cluster.stop()


def close(proxies: Iterable[Proxy]) -> None:
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize(
    "store", one_in(3, [server, sentinels, cluster]), ids=lambda store: store.__name__
)
def test_no_answer_over_a_network_with_faults_is_false(
    tmp_path: Path,
    store: Callable[[Path], AbstractContextManager[tuple[str, Sequence[Proxy]]]],
) -> None:
    with store(tmp_path) as (url, proxies):
        doubts = Doubts()
        ledger = Ledger(url, doubts)
        ledger.turn()  # it opens the store
        faults = Faults(SHARE, seed=1)
        for proxy in proxies:
            proxy.faults = faults
        turns = 0
        while turns < TURNS or len(faults.counts) < len(get_args(Fault)):
            ledger.turn()
            turns += 1
        for proxy in proxies:
            proxy.faults = None
            proxy.cut_all()
        assert ledger.problems() == []
        assert doubts.answered > 10 * doubts.unknown  # it was not all in doubt
