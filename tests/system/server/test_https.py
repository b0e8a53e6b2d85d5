"""TLS in the server: over real sockets, with several processes, reload and hostile clients."""

import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

import bide
from bide.model.errors import InvalidArgument, StoreUnavailable
from bide.server.app import ServerApp
from bide.server.http import tls
from bide.server.http.tls import context_of
from bide.server.settings import Settings
from tests.system.server.conftest import SERVERS, Serve
from tests.system.server.process import ServerProcess
from tests.system.server.raw import request
from tests.system.server.test_graceful_stop import refuses
from tests.system.server.test_processes import run_process
from tests.waiting import until


class Files(NamedTuple):
    """Certificates of one authority, as files."""

    folder: Path
    authority: trustme.CA

    def issue(self, name: str, *identities: str) -> tuple[str, str]:
        """Write a certificate and its key; return their files."""
        made = self.authority.issue_cert(*identities)
        chain, key = self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"
        chain.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return str(chain), str(key)

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def url(self, port: int, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"https://127.0.0.1:{port}/?ca={self.ca}{more}"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path, trustme.CA())
    made.authority.cert_pem.write_to_path(made.ca)
    return made


@pytest.fixture
def secured(serve: Serve, files: Files) -> Callable[..., int]:
    def start(**more: Any) -> int:
        cert, key = files.issue("server", "127.0.0.1")
        app = ServerApp(Settings(store="memory://tls", tls_cert=cert, tls_key=key, **more))
        return serve(app).port

    return start


def handshake(port: int, ca: str, *cert: str) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(*cert)
    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
    return context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_a_queue_works_over_https(secured: Callable[..., int], files: Files) -> None:
    with bide.Queue("orders", files.url(secured())) as orders:
        orders.put("x" * 1_000_000, id="large")
        [message] = orders.claim(wait=60)
        assert message.body == "x" * 1_000_000
        message.ack()


def test_a_waiting_claim_is_woken_over_https(secured: Callable[..., int], files: Files) -> None:
    url = files.url(secured())
    with bide.Queue("orders", url) as one, bide.Queue("orders", url) as other:
        one.put("soon", delay=0.05)
        [message] = other.claim(wait=60)
        assert message.body == "soon"


def test_a_request_right_behind_the_handshake_is_answered(
    secured: Callable[..., int], files: Files
) -> None:
    port = secured()
    for _ in range(20):
        with handshake(port, files.ca) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            assert b"200 OK" in client.makefile("rb").read()


def test_who_reads_slowly_gets_all_of_the_answer(
    secured: Callable[..., int], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not read yet counts as unread, and the goodbye of TLS comes after it."""
    monkeypatch.setattr(tls, "CLOSING_SECONDS", 0.01)
    port = secured()
    with bide.Queue("orders", files.url(port)) as orders:
        for number in range(7):
            orders.put("x" * 1_000_000, id=f"m{number}", delay="1h")
    with socket.socket() as raw:
        raw.settimeout(60)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.connect(("127.0.0.1", port))
        context = ssl.create_default_context(cafile=files.ca)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as client:
            client.sendall(request("GET", "/v1/queues/orders/messages", host="127.0.0.1"))
            unread = SERVERS[port].table.unread
            until(lambda: any(one.transport.get_write_buffer_size() > 2_000_000 for one in unread))
            size = 0
            while size < 7_000_000:
                piece = client.recv(1 << 16)
                assert piece, f"cut off after {size:,} bytes"
                size += len(piece)


def test_certificates_that_the_client_does_not_trust(
    secured: Callable[..., int], tmp_path: Path
) -> None:
    url = f"https://127.0.0.1:{secured()}"
    with (
        pytest.raises(StoreUnavailable, match=r"certificate.*\?ca=FILE") as refusal,
        bide.Queue("q", url) as q,
    ):
        q.put(1)
    assert refusal.value.lasts


def test_tls_1_1_and_plain_http_are_refused(secured: Callable[..., int], files: Files) -> None:
    port = secured()
    old = ssl.create_default_context(cafile=files.ca)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1 is"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        with pytest.raises(ssl.SSLError):
            old.wrap_socket(raw, server_hostname="127.0.0.1")
    with pytest.raises(StoreUnavailable, match=r"does it speak TLS \(https://\)\?"):
        bide.Queue("q", f"http://127.0.0.1:{port}").put(1)


def test_client_certificates(secured: Callable[..., int], files: Files, tmp_path: Path) -> None:
    port = secured(tls_client_ca=files.ca)
    for refused in (files.url(port), _stranger(files, tmp_path, port)):
        with pytest.raises(StoreUnavailable, match=r"client certificate, add \?cert=FILE"):
            bide.Queue("q", refused).put(1)
    cert, key = files.issue("client", "worker-7")
    with bide.Queue("q", files.url(port, cert=cert, cert_key=key)) as q:
        q.put(1)
        assert q.counts().sizes.ready == 1


def _stranger(files: Files, tmp_path: Path, port: int) -> str:
    folder = tmp_path / "stranger"
    folder.mkdir()
    cert, key = Files(folder, trustme.CA()).issue("client", "stranger")
    return files.url(port, cert=cert, cert_key=key)


def test_silent_clients_are_cut_off(secured: Callable[..., int]) -> None:
    port = secured(request_timeout=0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        silent.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        assert silent.recv(100) == b""
    while SERVERS[port].table.connections:
        time.sleep(0.001)


def test_handshakes_count_and_make_room(secured: Callable[..., int], files: Files) -> None:
    port = secured(max_connections=4)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(8)]
    with handshake(port, files.ca) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in client.makefile("rb").read()
    for one in silent[:4]:
        assert one.recv(1) == b""
    for one in silent:
        one.close()


def test_the_log_tells_of_failed_handshakes(
    secured: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with socket.create_connection(("127.0.0.1", secured()), timeout=60) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while plain.recv(100):
            pass
    deadline = time.monotonic() + 60
    while "no TLS handshake: HTTP_REQUEST" not in caplog.text:  # just after the connection closed
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tls_cert": "a.pem"}, "go together"),
        ({"tls_client_ca": "a.pem"}, "needs tls_cert"),
        ({"tls_cert": "a", "tls_key": "b", "socket": "s"}, "leave one out"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Settings(**settings)  # type: ignore[arg-type]


def test_files_that_cannot_be(files: Files) -> None:
    cert, key = files.issue("server", "127.0.0.1")
    _, other = files.issue("other", "127.0.0.1")
    for given, told in (
        (
            {"tls_cert": "/none.pem", "tls_key": key},
            r"tls_cert='/none.pem' and tls_key=.* cannot be used: No such",
        ),
        ({"tls_cert": cert, "tls_key": other}, "KEY_VALUES_MISMATCH"),
        ({"tls_cert": cert, "tls_key": key, "tls_client_ca": key}, "tls_client_ca=.* cannot be"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            context_of(Settings(**given))  # type: ignore[arg-type]


def test_files_of_the_url_that_cannot_be(files: Files) -> None:
    for url, told in (
        ("http://127.0.0.1:1/?ca=x", "write https"),
        ("https://127.0.0.1:1/?cert_key=x", "needs .cert"),
        ("https://127.0.0.1:1/?ca=/none.pem", "/none.pem.*No such file"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            bide.Queue("q", url).put(1)


def test_a_token_in_clear_text_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    bide.Queue("q", "http://:secret@queue.example:8642").close()
    assert "http://queue.example:8642: the token crosses the network in clear" in caplog.text
    caplog.clear()
    for quiet in ("http://:t@127.0.0.1:8642", "https://:t@queue.example", "http://other.example"):
        bide.Queue("q", quiet).close()
    assert caplog.text == ""


def _serial(port: int, ca: str) -> object:
    with handshake(port, ca) as client:
        return (client.getpeercert() or {})["serialNumber"]


@pytest.fixture
def process(tmp_path: Path, files: Files) -> Iterator[ServerProcess]:
    cert, key = files.issue("server", "127.0.0.1")
    arguments = ("--tls-cert", cert, "--tls-key", key, "--workers", "2")
    with ServerProcess(tmp_path, *arguments, ca=files.ca) as server:
        yield server


@pytest.mark.process
def test_sighup_reads_the_certificate_again(process: ServerProcess, files: Files) -> None:
    before = _serial(process.port, files.ca)
    cert, key = files.issue("server", "127.0.0.1")
    process.reload()
    after = {_serial(process.port, files.ca) for _ in range(8)}
    assert len(after) == 1
    assert before not in after
    Path(key).write_text("broken")
    process.process.send_signal(signal.SIGHUP)
    process.until("keep the code they have")
    assert f"tls_cert={cert!r} and tls_key={key!r} cannot be used" in process.text
    assert {_serial(process.port, files.ca) for _ in range(8)} == after


@pytest.mark.process
def test_nobody_is_let_in_while_what_is_under_way_is_finished(
    process: ServerProcess, files: Files
) -> None:
    data = request("POST", "/v1/queues/orders/messages", b'{"body": 1}')
    with handshake(process.port, files.ca) as client:
        client.sendall(data[:-5])
        process.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(process.port))
        client.sendall(data[-5:])
        assert b" 201 " in client.recv(100)


@pytest.mark.process
def test_check_and_start_say_what_is_wrong(tmp_path: Path, files: Files) -> None:
    cert, _ = files.issue("server", "127.0.0.1")
    for more in ((), ("--check",)):
        done = run_process(
            tmp_path, "serve", "--port", "0", "--tls-cert", cert, "--tls-key", "/none", *more
        )
        assert done.returncode == 2
        assert "--tls-key '/none' cannot be used: No such file" in done.stderr


@pytest.mark.full
@pytest.mark.process
def test_a_start_with_tokens_and_without_tls_warns(tmp_path: Path, files: Files) -> None:
    arguments = ("--host", "0.0.0.0", "--auth", "required")
    with ServerProcess(tmp_path, *arguments) as server:
        assert "tokens cross the network in clear text: host='0.0.0.0'" in server.text
    cert, key = files.issue("server", "127.0.0.1", "0.0.0.0")
    secured = (*arguments, "--tls-cert", cert, "--tls-key", key)
    with ServerProcess(tmp_path, *secured, ca=files.ca) as server:
        assert "clear text" not in server.text
        connection = HTTPSConnection(
            "127.0.0.1", server.port, context=ssl.create_default_context(cafile=files.ca)
        )
        connection.request("GET", "/v1/queues")
        assert connection.getresponse().status == 401
        connection.close()
