"""Nodes of a cluster that are away: a thread seeks them, callers do not."""

import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bide.engines.redis import nodes as module
from bide.engines.redis.nodes import Nodes
from bide.engines.redis.sentinel import Address
from bide.engines.redis.settings import read_url
from bide.model.errors import StoreUnavailable
from bide.threads import deaths
from tests.cluster import eventually
from tests.proxy import Proxy
from tests.servers import RedisServer, free_port

pytestmark = pytest.mark.process


@pytest.fixture
def address() -> Address:
    return "127.0.0.1", free_port()


@pytest.fixture
def nodes(address: Address) -> Iterator[Nodes]:
    nodes = Nodes(read_url(urlsplit(f"redis+cluster://{address[0]}:{address[1]}")))
    yield nodes
    nodes.close()


def seekers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "bide-watcher"]


def refused(nodes: Nodes, address: Address) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as told:
        nodes.connection(address)
    return told.value


def test_the_error_of_a_node_that_is_away_does_not_grow(nodes: Nodes, address: Address) -> None:
    before = set(seekers())
    errors = [refused(nodes, address) for _ in range(20)]
    eventually(lambda: set(seekers()) - before)
    assert len(set(seekers()) - before) == 1
    assert len(list(traceback.walk_tb(errors[-1].__traceback__))) < 10


def test_a_node_that_is_back_is_found(
    nodes: Nodes, address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.02)
    refused(nodes, address)
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    server = RedisServer(tmp_path, port=address[1], **config)

    def answers() -> bool:
        with suppress(StoreUnavailable):
            return bool(nodes.connection(address).ask("PING") == b"PONG")
        return False

    try:
        eventually(answers)
    finally:
        nodes.close()
        server.stop()
    eventually(lambda: not seekers())


def test_the_watcher_goes_on_after_an_error_that_nobody_expects(
    nodes: Nodes, address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.02)
    refused(nodes, address)
    died = deaths["bide-watcher"]
    with monkeypatch.context() as broken:
        broken.setattr(module, "RedisConnection", None)  # calling it raises a TypeError
        eventually(lambda: deaths["bide-watcher"] > died)
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    server = RedisServer(tmp_path, port=address[1], **config)
    try:
        eventually(lambda: nodes.away[address] is None)
    finally:
        nodes.close()
        server.stop()


def test_a_node_that_is_back_and_slow_is_waited_for(
    nodes: Nodes, address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.02)
    monkeypatch.setattr(module, "QUICK", 0.05)
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    server = RedisServer(tmp_path, port=free_port(), **config)
    proxy = Proxy(server.path, port=address[1])

    def slowly(data: bytes) -> bytes:
        time.sleep(0.1)
        return data

    def answers() -> bool:
        with suppress(StoreUnavailable):
            return bool(nodes.connection(address).ask("PING") == b"PONG")
        return False

    try:
        assert answers()
        proxy.rewrite = slowly
        proxy.cut_all()
        nodes.lose(address)
        refused(nodes, address)
        eventually(answers)
    finally:
        nodes.close()
        proxy.close()
        server.stop()


def test_a_server_that_is_back_is_connected_to_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    nodes = Nodes(read_url(urlsplit(server.url)))
    server.stop()
    try:
        for _ in range(2):
            refused(nodes, nodes.owner(0) or ("", 0))
        server.start()
        assert nodes.connection(nodes.owner(0) or ("", 0)).usable
    finally:
        nodes.close()
        server.stop()
