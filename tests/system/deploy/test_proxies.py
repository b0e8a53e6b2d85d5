"""deploy/nginx.conf and deploy/Caddyfile, with real proxies in front of `bide serve`."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPSConnection, RemoteDisconnected
from pathlib import Path

import pytest
import trustme

import bide
from bide.lane.shared import close_lane, open_lane
from bide.server.access.tokens import Tokens
from tests.docs.test_pages import ROOT
from tests.effort import one_in
from tests.servers import free_port
from tests.system.server.process import ServerProcess

pytestmark = pytest.mark.process


ALONE = "admin off\n\tauto_https off"
"""Caddy opens no port of its own, and asks nobody for certificates."""


LIMIT = 34 << 20
"""Bytes; both proxies refuse a body of so many. It is sent whole: Caddy reads before it refuses."""


class Front:
    """A proxy, and what its clients need."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.ca = str(folder / "ca.pem")
        self.upstream = folder / "http.sock"

    @contextmanager
    def connection(self) -> Iterator[HTTPSConnection]:
        context = ssl.create_default_context(cafile=self.ca)
        made = HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)
        try:
            yield made
        finally:
            made.close()

    def queue(self, token: str) -> bide.Queue:
        return bide.Queue("orders", f"https://:{token}@127.0.0.1:{self.port}/?ca={self.ca}")


def changed(name: str, folder: Path, **replaced: tuple[str, str]) -> str:
    """Return a configuration of deploy/ with names of this machine."""
    text = (ROOT / "deploy" / name).read_text()
    assert "/run/bide/http.sock" in text
    text = text.replace("/run/bide/http.sock", f"{folder}/http.sock")
    for before, after in replaced.values():
        assert before in text, before
        text = text.replace(before, after)
    return text


def nginx(folder: Path, port: int) -> list[str]:
    server = changed(
        "nginx.conf",
        folder,
        listen=("listen 443 ", f"listen 127.0.0.1:{port} "),
        cert=("/etc/ssl/queue.example", f"{folder}/cert"),
    )
    kept = "client_body", "proxy", "fastcgi", "uwsgi", "scgi"
    temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in kept)
    (folder / "nginx.conf").write_text(
        f"user root;\ndaemon off;\npid {folder}/nginx.pid;\nerror_log stderr;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{server}}}\n"
    )
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int) -> list[str]:
    text = changed(
        "Caddyfile",
        folder,
        options=("{\n\tservers", f"{{\n\t{ALONE}\n\tservers"),
        site=(
            "queue.example {",
            f"https://127.0.0.1:{port} {{\n\ttls {folder}/cert.pem {folder}/cert-key.pem",
        ),
    )
    (folder / "Caddyfile").write_text(text)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


@pytest.fixture(params=one_in(2, [nginx, caddy]), ids=["nginx", "caddy"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    commands: Callable[[Path, int], list[str]] = request.param
    front = Front(tmp_path, free_port())
    authority = trustme.CA()
    authority.cert_pem.write_to_path(front.ca)
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(str(tmp_path / "cert-key.pem"))
    (tmp_path / "cert.pem").write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    command = commands(tmp_path, front.port)
    assert shutil.which(command[0]), f"no {command[0]} on PATH: run `make test`, or tools/servers"
    with (tmp_path / "proxy.log").open("wb") as log:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", front.port), timeout=60).close()
                break
            except ConnectionRefusedError:
                said = (tmp_path / "proxy.log").read_text()
                assert process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.01)
        yield front
    finally:
        process.terminate()
        process.wait(60)


def token_of(folder: Path) -> str:
    lane = open_lane(f"sqlite:///{folder}/bide.db")
    try:
        return Tokens(lane).create(None, ["admin"])[0]
    finally:
        close_lane(lane)


def test_requests_streams_and_limits(front: Front) -> None:
    token = token_of(front.folder)
    listens = "--socket", str(front.upstream), "--socket-mode", "660", "--trusted-proxy", "unix"
    with ServerProcess(front.folder, *listens) as server:
        with front.queue(token) as one, front.queue(token) as other:
            body = "x" * 1_000_000
            one.put(body, id="large")
            found = other.get("large")
            assert found is not None
            assert found.body == body
            other.cancel("large")
            # By way of the event stream: it was open before, and nobody holds back what it says.
            threading.Timer(0.3, lambda: one.put("soon", delay=0.1)).start()
            [message] = other.claim(wait=60)
            message.ack()
        _streams(front, token)
        _waits(front, token)
        _bounds(front, token)
        lines = [line for line in server.text.splitlines() if " client=" in line]
        assert lines
        assert all(" client=127.0.0.1 " in line for line in lines)


def _streams(front: Front, token: str) -> None:
    with front.connection() as stream, front.queue(token) as orders:
        said = {"authorization": f"Bearer {token}"}
        stream.request("GET", "/v1/events?counts=0.1", headers=said)
        answer = stream.getresponse()
        assert answer.status == 200
        orders.put("heard of", id="h", delay=60)
        while b'"delayed":1' not in (line := answer.readline()):
            assert line
        orders.cancel("h")


def _waits(front: Front, token: str) -> None:
    with front.connection() as poll, front.queue(token) as orders:
        threading.Timer(0.5, lambda: orders.put("later")).start()
        said = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        poll.request("POST", "/v1/queues/orders/claim", b'{"wait": "20s"}', said)
        answer = poll.getresponse()
        assert (answer.status, b'"later"' in answer.read()) == (200, True)


def _bounds(front: Front, token: str) -> None:
    said = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    for method, headers, statuses in (
        ("POST", {**said, "content-length": str(LIMIT)}, (413,)),
        ("GET", {**said, "x-long": "x" * 100_000}, (400, 431)),
    ):
        with front.connection() as large:
            large.putrequest(method, "/v1/queues/orders/messages")
            for name, value in headers.items():
                large.putheader(name, value)
            large.endheaders()
            try:
                if method == "POST":
                    large.send(b" " * LIMIT)
            except OSError:
                pass  # it was refused before all had come
            try:
                assert large.getresponse().status in statuses
            except (RemoteDisconnected, ConnectionResetError):
                assert method == "POST"  # the refusal was lost behind what nobody read


def test_the_address_of_the_client_is_the_proxys_word(front: Front) -> None:
    heads: list[bytes] = []

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            heads.append(connection.recv(65_536).lower())
            connection.sendall(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(front.upstream))
        listening.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        with front.connection() as client:
            forged = {"X-Forwarded-For": "203.0.113.9, 203.0.113.8", "Forwarded": "for=203.0.113.7"}
            client.request("GET", "/", headers=forged)
            assert client.getresponse().status == 204
        thread.join()
    assert b"x-forwarded-for: 127.0.0.1\r\n" in heads[0]
    assert b"203.0.113" not in heads[0]
