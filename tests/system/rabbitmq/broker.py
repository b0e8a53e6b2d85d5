"""A real RabbitMQ for tests: its own node name, ports and folder."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from base64 import b64encode
from pathlib import Path
from typing import IO, Any

from tests.servers import free_port

PATIENCE = 60.0

USERS = {"guest": (".*", ".*", ".*"), "reader": ("", "", ".*"), "writer": (".*", "^$", ".*")}
"""Users, whose password is their name, and what they may configure, write and read."""


UNTIL_ORPHANED = '("$0"; kill -9 0) & read -r _; kill -9 0'
"""Runs a program, and ends its process group when the pipe closes: its parent is gone."""


class Broker:
    """One node of RabbitMQ, listening on 127.0.0.1.

    Args:
        folder: where it keeps everything, its Erlang cookie included.
        certificates: a folder with cert.pem, key.pem and ca.pem: it listens for TLS, too, on
            `tls_port`.
    """

    def __init__(self, folder: Path, certificates: Path | None = None) -> None:
        self.folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self._epmd, self._distribution = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._environment = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bide{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none "
                # Milliseconds until a dead letter that nobody has taken is published again.
                "-rabbit dead_letter_worker_publisher_confirm_timeout 500"
            ),
        }
        (folder / "enabled_plugins").write_text("[].")
        (folder / "definitions.json").write_text(json.dumps(_definitions()))
        lines = [
            f"load_definitions = {folder / 'definitions.json'}",
            "vm_memory_high_watermark.absolute = 1GB",
            "disk_free_limit.absolute = 10MB",
            "heartbeat = 10",
            "log.file.level = warning",
            "collect_statistics_interval = 60000",
        ]
        if certificates is not None:
            lines += [
                f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                f"ssl_options.certfile = {certificates / 'cert.pem'}",
                f"ssl_options.keyfile = {certificates / 'key.pem'}",
                f"ssl_options.cacertfile = {certificates / 'ca.pem'}",
                "ssl_options.verify = verify_none",
            ]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        self._names = self._run("epmd", subprocess.DEVNULL)
        while not _connects(self._epmd):  # or the node starts one that outlives it
            time.sleep(0.01)
        self.start()

    @property
    def url(self) -> str:
        """The URL of the default virtual host."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start the node, and wait until it listens."""
        # Debian's script on the PATH changes the user and loses the settings.
        with (self.folder / "output").open("ab") as output:
            self.process = self._run("rabbitmq-server", output)
        deadline = time.monotonic() + PATIENCE
        while not _listens(self.port):
            assert self.process.poll() is None, (self.folder / "output").read_text()
            assert time.monotonic() < deadline, "rabbitmq-server does not come up"
            time.sleep(0.02)

    def _run(self, program: str, output: IO[bytes] | int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            ["sh", "-c", UNTIL_ORPHANED, _program(program)],
            env=self._environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> None:
        """End the node at once, without a chance to say goodbye."""
        if self.process is not None:
            _end(self.process)
            self.process = None

    def close(self) -> None:
        """End the node, and its name server, for good."""
        self.kill()
        _end(self._names)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl`, and return what it prints."""
        done = subprocess.run(
            [_program("rabbitmqctl"), "-q", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _end(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob(f"rabbitmq_server-*/sbin/{name}"))
    program = str(found[-1]) if found else shutil.which(name)
    assert program is not None, f"no {name}: run `make test`, or tools/servers"
    return program


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"AMQP\0\0\x09\x01")
            return bool(probe.recv(8))
    except OSError:
        return False


def _definitions() -> dict[str, Any]:
    users, permissions = [], []
    for name, (configure, write, read) in USERS.items():
        salted = b"bide" + hashlib.sha256(b"bide" + name.encode()).digest()
        users.append(
            {
                "name": name,
                "password_hash": b64encode(salted).decode(),
                "tags": "administrator",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
            }
        )
        permissions.append(
            {
                "user": name,
                "vhost": "/",
                "configure": configure,
                "write": write,
                "read": read,
            }
        )
    return {"vhosts": [{"name": "/"}], "users": users, "permissions": permissions}
