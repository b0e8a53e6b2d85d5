"""A real Redis Cluster for tests: masters that share the slots, and a replica for each."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from bide.engines.redis.layout import SLOTS
from tests.servers import PATIENCE, RedisServer, free_port

__all__ = ["RedisCluster"]

NODE_TIMEOUT_MS = 1_500
"""After so long a silence a node counts as gone."""


class RedisCluster:
    """Servers that form a cluster.

    Args:
        folder: where all of them keep their files.
        masters: how many share the slots.
        replicas: how many follow each of these.
        config: of the servers.
    """

    def __init__(self, folder: Path, *, masters: int = 3, replicas: int = 0, **config: str) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._config = config
        self.servers: list[RedisServer] = []
        try:
            for _ in range(masters * (1 + replicas)):
                self._server()
            self.masters = self.servers[:masters]
            first = self.servers[0]
            for number, server in enumerate(self.masters):
                low, high = number * SLOTS // masters, (number + 1) * SLOTS // masters - 1
                ask(server, "CLUSTER", "ADDSLOTSRANGE", low, high)
            for number, server in enumerate(self.servers):
                ask(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for server in self.servers[1:]:
                port = server.config.get("tls-port", server.port)
                ask(first, "CLUSTER", "MEET", "127.0.0.1", port, server.config["cluster-port"])
            eventually(lambda: all(self._knows_all(server) for server in self.servers))
            for number, server in enumerate(self.servers[masters:]):
                ask(server, "CLUSTER", "REPLICATE", self.id_of(self.masters[number % masters]))
            eventually(lambda: all(self._is_fine(server) for server in self.servers))
            eventually(lambda: all(self._follows(server) for server in self.servers[masters:]))
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """A URL that names two of the nodes."""
        tls = "tls-cert-file" in self._config
        ports = [server.config["tls-port" if tls else "port"] for server in self.servers[:2]]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"{'rediss' if tls else 'redis'}+cluster://{hosts}"

    def stop(self) -> None:
        """End all servers."""
        for server in self.servers:
            server.stop()

    def id_of(self, server: RedisServer) -> str:
        """Return by what a node is known to the others."""
        return str(ask(server, "CLUSTER", "MYID").decode())

    def owner(self, slot: int, *, besides: RedisServer | None = None) -> RedisServer:
        """Return the master of a slot, as a living node sees it that is not `besides`."""
        living = next(server for server in self.servers if server.process and server is not besides)
        for first, last, master, *_ in ask(living, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == master[1])
        raise AssertionError(f"nobody has slot {slot}")

    def move(self, slot: int, to: RedisServer) -> tuple[Callable[[], None], Callable[[], None]]:
        """Begin to move a slot; return what moves its keys, and what ends it."""
        source = self.owner(slot)
        assert source is not to
        ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))

        def carry() -> None:
            while keys := ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
                ask(source, "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)

        def end() -> None:
            for server in (to, source, *self.masters):
                if server.process is not None:
                    ask(server, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(to))

        return carry, end

    def wipe(self) -> None:
        """Forget all data."""
        for server in self.masters:
            ask(server, "FLUSHALL")

    def _server(self) -> RedisServer:
        folder = self._folder / f"node{next(self._numbers)}"
        folder.mkdir()
        config = {
            "cluster-enabled": "yes",
            "cluster-port": str(free_port()),
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "cluster-require-full-coverage": "no",
            "cluster-replica-validity-factor": "0",
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
            **self._config,
        }
        if "tls-cert-file" in config:
            config |= {
                "tls-port": str(free_port()),
                "tls-cluster": "yes",
                "tls-replication": "yes",
            }
        self.servers.append(RedisServer(folder, port=free_port(), **config))
        return self.servers[-1]

    def _knows_all(self, server: RedisServer) -> bool:
        lines = ask(server, "CLUSTER", "NODES").decode().splitlines()
        return len(lines) == len(self.servers) and not any("handshake" in line for line in lines)

    def _is_fine(self, server: RedisServer) -> bool:
        facts = ask(server, "CLUSTER", "INFO").decode()
        known = sum(len(entry) - 2 for entry in ask(server, "CLUSTER", "SLOTS"))
        return "cluster_state:ok" in facts and known == len(self.servers)

    def _follows(self, server: RedisServer) -> bool:
        return b"master_link_status:up" in ask(server, "INFO", "replication")


def ask(server: RedisServer, *command: Any) -> Any:
    """Have a server carry out a command."""
    with redis.Redis(unix_socket_path=server.path) as client:
        client.response_callbacks.clear()  # as it comes
        return client.execute_command(*command)


def eventually(true: Callable[[], Any]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if true():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.02)
