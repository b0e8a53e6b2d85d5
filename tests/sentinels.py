"""A real Sentinel group for tests: a master, its replicas, and three who watch over them."""

import itertools
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tests.servers import PATIENCE, RedisServer, free_port

__all__ = ["NAME", "SentinelGroup"]

NAME = "orders"
"""What the sentinels call the group."""

DOWN_MS = 800
"""After so long a silence the sentinels give a server up."""

# Sentinels look around every second or ten; here they hurry. A busy machine is not to make them
# believe that their clock went wrong, in which case they do nothing for a while (TILT), nor that
# they know too little of a replica, of which they hear every second: within five pings.
_HURRY = (
    "info-period",
    200,
    "ping-period",
    500,
    "ask-period",
    100,
    "publish-period",
    100,
    "default-failover-timeout",
    2000,
    "tilt-trigger",
    60_000,
    "tilt-period",
    100,
    "slave-reconf-timeout",
    500,
    "min-link-reconnect-period",
    100,
    "election-timeout",
    1000,
)


class SentinelGroup:
    """Servers that replicate one of them, and three sentinels that name a new master in need.

    Args:
        folder: where all of them keep their files.
        replicas: how many servers follow the master at first.
        config: of the servers.
        sentinel_config: lines for the sentinels' files.
        auth: the password that these say, for the sentinels.
        server_auth: the password that `config` says.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 1,
        config: dict[str, str] | None = None,
        sentinel_config: str = "",
        auth: str | None = None,
        server_auth: str | None = None,
    ) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._config = {"repl-diskless-sync-delay": "0", **(config or {})}
        self._auth, self._server_auth = auth, server_auth
        self.servers: list[RedisServer] = []
        self._watchers: list[tuple[int, subprocess.Popen[bytes]]] = []
        try:
            master = self._server()
            for _ in range(replicas):
                self._server(replicaof=f"127.0.0.1 {master.port}")
            self._wait(lambda: self._online(master) == replicas)
            for _ in range(3):
                self._watchers.append(self._sentinel(master.port, sentinel_config))
            self._wait(lambda: all(self._knows(port, replicas) for port, _ in self._watchers))
            # One that has not heard of a planned fail-over takes it back after four periods.
            for number in range(3):
                self.ask(number, "SENTINEL", "DEBUG", "publish-period", 500)
        except BaseException:
            self.stop()
            raise

    @property
    def hosts(self) -> str:
        """The sentinels as they stand in a URL."""
        return ",".join(f"127.0.0.1:{port}" for port, _ in self._watchers)

    @property
    def url(self) -> str:
        """The URL of the group."""
        return f"redis+sentinel://{self.hosts}/{NAME}"

    def master(self) -> RedisServer:
        """Return the server that most sentinels believe to be the master."""
        told = [self._master_by(port) for port, _ in self._watchers]
        port = max(told, key=told.count)
        return next(server for server in self.servers if server.port == port)

    def wait_for_another(self, old: RedisServer) -> RedisServer:
        """Wait until the sentinels name another master, and return it."""
        self._wait(lambda: self.master() is not old)
        return self.master()

    def wait_for_replica(self) -> None:
        """Wait until a replica follows the master, whoever that is, so closely that it says so."""
        with self.master().client(password=self._server_auth) as client:

            def follows() -> bool:
                client.set("followed", 1, px=1)
                return bool(client.wait(1, 1500))

            # It may first say only what the copy contained, and a second later what came since.
            self._wait(follows)
            self._wait(follows)

    def ask(self, number: int, *command: Any) -> Any:
        """Send a command to one of the sentinels."""
        with self._client(self._watchers[number][0]) as client:
            return client.execute_command(*command)

    def kill_sentinel(self, number: int) -> None:
        """End one of the sentinels."""
        process = self._watchers[number][1]
        process.kill()
        process.wait(PATIENCE)

    @staticmethod
    def free_port() -> int:
        """Return a port that nobody listens on."""
        return free_port()

    def stop(self) -> None:
        """End all."""
        for _, process in self._watchers:
            process.kill()
            process.wait(PATIENCE)
        for server in self.servers:
            server.stop()

    def _server(self, **config: str) -> RedisServer:
        folder = self._folder / f"server{next(self._numbers)}"
        folder.mkdir()
        server = RedisServer(folder, port=free_port(), **self._config, **config)
        self.servers.append(server)
        return server

    def _sentinel(self, master: int, more: str) -> tuple[int, "subprocess.Popen[bytes]"]:
        folder = self._folder / f"sentinel{next(self._numbers)}"
        folder.mkdir()
        port = free_port()
        file = folder / "sentinel.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/log\n"
            f"sentinel monitor {NAME} 127.0.0.1 {master} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\n"
            f"sentinel failover-timeout {NAME} 2000\n{more}\n"
        )
        program = shutil.which("redis-server")
        assert program is not None, "no redis-server on PATH: run `make test`, or tools/servers"
        process = subprocess.Popen(
            [program, str(file), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with self._client(port) as client:
            self._wait(lambda: _answers(client))
            client.execute_command("SENTINEL", "DEBUG", *_HURRY)
        return port, process

    def _client(self, port: int) -> "redis.Redis":
        return redis.Redis(port=port, password=self._auth, socket_timeout=PATIENCE)

    def _master_by(self, port: int) -> int:
        try:
            with self._client(port) as client:
                return int(client.sentinel_get_master_addr_by_name(NAME)[1])
        except redis.ConnectionError:
            return 0

    def _knows(self, port: int, replicas: int) -> bool:
        """Tell whether a sentinel has found the others and the replicas."""
        with self._client(port) as client:
            state = client.sentinel_master(NAME)
        return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == replicas)

    def _online(self, server: RedisServer) -> int:
        client = server.client(password=self._server_auth)
        facts = client.info("replication")
        client.close()
        return sum(
            fact.get("state") == "online"
            for name, fact in facts.items()
            if name.startswith("slave") and isinstance(fact, dict)
        )

    @staticmethod
    def _wait(true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, "the group does not come up, or does not fail over"
            time.sleep(0.02)


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
