"""`bide serve` as a process: stopping, dying, several at a time."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import bide
from bide.cli import main
from bide.model.limits import MAX_FAILED_LOGINS
from tests.effort import one_in
from tests.system.server.client import Q
from tests.system.server.process import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.process


def ask(port: int, method: str, path: str, content: Any = None) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    data = None if content is None else json.dumps(content)
    try:
        connection.request(method, path, data, {"content-type": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_what_was_confirmed_survives_a_kill_under_load(tmp_path: Path) -> None:
    confirmed: list[str] = []
    asked: list[str] = []
    with ServerProcess(tmp_path) as server:

        def load(number: int) -> None:
            for count in range(100_000):
                id = f"{number}-{count}"
                asked.append(id)
                try:
                    ask(server.port, "PUT", f"{Q}/messages/{id}", {"body": count})
                except (OSError, HTTPException):
                    return
                confirmed.append(id)

        threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while len(confirmed) < 300:
            time.sleep(0.01)
        server.kill()
        for thread in threads:
            thread.join()
    with ServerProcess(tmp_path) as server:
        found: set[str] = set()
        while batch := ask(server.port, "POST", f"{Q}/claim", {"count": 500})["messages"]:
            leases = [{"id": m["id"], "token": m["token"]} for m in batch]
            ask(server.port, "POST", f"{Q}/ack", {"leases": leases})
            found |= {message["id"] for message in batch}
        assert set(confirmed) <= found <= set(asked)
        assert ask(server.port, "GET", f"{Q}/audit")["balanced"]


@pytest.mark.full
def test_a_stop_answers_the_claims_that_wait(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        assert f", store sqlite:///{tmp_path.resolve()}/bide.db; no tokens" in server.text
        answers: list[Any] = []

        def claim() -> None:
            answers.append(ask(server.port, "POST", f"{Q}/claim", {"wait": "5m"}))

        threads = [threading.Thread(target=claim) for _ in range(5)]
        for thread in threads:
            thread.start()
        while not re.search(r"bide_http_claims_waiting 5", _metrics(server)):
            time.sleep(0.01)
        assert server.stop() == 0
        for thread in threads:
            thread.join()
        assert [answer["messages"] for answer in answers] == [[]] * 5


def test_a_stop_ends_the_streams_without_a_fuss(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        connections = [HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(8)]
        streams = []
        for connection in connections:
            connection.request("GET", "/v1/events?counts=0.001&workers=true")
            streams.append(connection.getresponse())
        for stream in streams:
            while b"tick" not in stream.readline():
                pass
        assert server.stop() == 0
        for stream in streams:
            assert stream.read()[-2:] in (b"", b"\n\n")  # and the stream has its proper end
        for connection in connections:
            connection.close()
    assert "Traceback" not in server.text


def _metrics(server: ServerProcess) -> str:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_a_process_that_dies_is_replaced_while_the_others_answer(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--workers", "2") as server:
        deadline = time.monotonic() + 60
        while len(first := server.workers()) < 2:  # the first may answer before the second starts
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(first[0], signal.SIGKILL)
        while len(set(server.workers()) - set(first)) < 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for number in range(10):
            ask(server.port, "PUT", f"{Q}/messages/m{number}", {"body": number})
        assert ask(server.port, "GET", Q)["sizes"]["ready"] == 10


@pytest.mark.full
def test_two_servers_on_one_store_wake_each_other(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as one, ServerProcess(tmp_path) as two:
        got: list[object] = []

        def claim() -> None:
            with bide.Queue("orders", one.url) as queue:
                with queue.take(wait=60) as message:
                    got.append(message.body)

        thread = threading.Thread(target=claim)
        thread.start()
        while "POST /v1/batch" not in one.text:
            time.sleep(0.01)
        with bide.Queue("orders", two.url) as queue:
            queue.put({"order": 1})
        thread.join()
        assert got == [{"order": 1}]


def test_the_engine_lives_through_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        port = server.port
        with bide.Queue("orders", f"{server.url}?reconnect=0") as queue:
            queue.put(1, id="a")
            server.stop()
            with pytest.raises(bide.StoreUnavailable, match="cannot be reached"):
                queue.put(2, id="b")
            with ServerProcess(tmp_path, "--port", str(port)):
                assert queue.put(2, id="b")
                assert [delivery.body for delivery in queue.claim(5)] == [1, 2]


@pytest.mark.parametrize("mode", one_in(2, ["600", "660"]))
def test_a_unix_socket(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "bide.sock"
    with ServerProcess(tmp_path, "--socket", str(path), "--socket-mode", mode) as server:
        assert f"{path.stat().st_mode & 0o777:o}" == mode
        deadline = time.monotonic() + 60
        answer = b""
        while b'"ok"' not in answer:
            assert time.monotonic() < deadline
            answer = _ask(path, b"GET /healthz HTTP/1.1")
        asked = _ask(path, b"GET /v1/queues HTTP/1.1")
        # Users that may open the socket are strangers, as are the clients of a proxy.
        assert (b" 401 " in asked and b"bide token create" in asked) == (mode == "660")
        assert server.stop() == 0
    assert not path.exists()


def test_a_shared_unix_socket_is_open_when_auth_is_off(tmp_path: Path) -> None:
    path = tmp_path / "bide.sock"
    with ServerProcess(
        tmp_path, "--socket", str(path), "--socket-mode", "660", "--auth", "off"
    ) as server:
        assert b" 200 " in _ask(path, b"GET /v1/queues HTTP/1.1")
        assert server.stop() == 0


@pytest.mark.full
def test_another_server_may_take_a_unix_socket_while_one_finishes(tmp_path: Path) -> None:
    path = tmp_path / "bide.sock"
    with (
        ServerProcess(tmp_path, "--socket", str(path)) as first,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy,
    ):
        until(lambda: b" 200 " in _ask(path, b"GET /healthz HTTP/1.1"))
        busy.settimeout(60)
        busy.connect(str(path))
        head = b"PUT /v1/queues/q/messages/a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
        busy.sendall(head + b"Content-Type: application/json\r\n\r\n{")
        until(lambda: " client=" in first.text)
        first.process.send_signal(signal.SIGTERM)
        until(lambda: not path.exists())
        with ServerProcess(tmp_path, "--socket", str(path)) as second:
            busy.sendall(b'"body":1}')
            assert b" 201 " in busy.recv(100)
            assert first.process.wait(60) == 0
            assert b" 200 " in _ask(path, b"GET /healthz HTTP/1.1")
            assert second.stop() == 0


def _ask(path: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(4_096), b""))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call `bide` in this process, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BIDE_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str, **more: str) -> Result:
        return CliRunner().invoke(main, arguments, env=more, prog_name="bide")

    return call


def run_process(tmp_path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Call `bide` in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BIDE_")}
    return subprocess.run(
        [sys.executable, "-m", "bide", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment | more,
        timeout=60,
        check=False,
    )


def test_check_shows_what_a_file_the_environment_and_flags_say(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    (tmp_path / "serve.toml").write_text(
        'port = 9001\nworkers = 3\ngrace = "5s"\n[quotas.shop]\nrate = 100\nlongest_delay = "30d"\n'
    )
    done = run(
        "serve",
        "--config",
        "serve.toml",
        "--check",
        "--json",
        "--workers",
        "2",
        "--allow-network",
        "10.1.0.0/16",
        "--no-push",
        BIDE_SERVE_PORT="9002",
        BIDE_URL="sqlite:///other.db",
    )
    shown = json.loads(done.stdout)
    assert (shown["port"], shown["workers"], shown["grace"]) == (9002, 2, 5_000)
    assert (shown["store"], shown["tokens"]) == ("sqlite:///other.db", 0)
    assert shown["quotas"]["shop"]["rate"] == 100
    assert (shown["push"], shown["push_networks"]) == (False, ["10.1.0.0/16"])
    more = {"BIDE_SERVE_PUSH_NETWORKS": "10.1.0.0/16 ::1", "BIDE_SERVE_PUSH": "yes"}
    told = json.loads(run("serve", "--check", "--json", "--port", "0", **more).stdout)
    assert (told["push"], told["push_networks"]) == (True, ["10.1.0.0/16", "::1/128"])
    assert not (tmp_path / "other.db").exists()
    lines = run("serve", "--check", "--port", "0", **more).stdout.splitlines()
    plain = dict(line.split("\t") for line in lines)
    assert (plain["socket"], plain["push"], plain["grace"]) == ("", "true", "30000")
    assert (plain["push_networks"], plain["quotas"]) == ("10.1.0.0/16 ::1/128", "")


def test_check_and_start_say_that_the_action_log_cannot_be_written(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    long = f"{'x' * 300}/log"  # nobody may look for it, as in a folder that one may not enter
    for log in ("nowhere/log", long):
        checked = run("serve", "--check", "--port", "0", "--action-log", log)
        assert (checked.exit_code, checked.stdout) == (2, "")
        assert checked.stderr.startswith(f"error: --action-log {log!r} cannot be opened")
    started = run_process(tmp_path, "serve", "--port", "0", "--action-log", "nowhere/log")
    assert (started.returncode, started.stdout) == (2, "")
    assert started.stderr.startswith("error: --action-log 'nowhere/log' cannot be opened")


def test_a_socket_that_others_listen_on_is_left_to_them(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        path = tmp_path / f"{kind.name}.sock"
        with socket.socket(socket.AF_UNIX, kind) as theirs:
            theirs.bind(str(path))
            if kind is socket.SOCK_STREAM:
                theirs.listen()
            done = run("serve", "--check", "--socket", str(path))
            assert done.exit_code == 2, done.stderr
            assert f"{path} is the socket of another program" in done.stderr
            assert path.is_socket()
        assert run("serve", "--check", "--socket", str(path)).exit_code == 0
        assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host", "0.0.0.0"], "--host '0.0.0.0' can be reached from other machines"),
        (["--host", "0.0.0.0"], "make one with bide token create, or listen on 127.0.0.1"),
        (["--host", "0.0.0.0", "--auth", "off"], "token create and leave --auth off out, or"),
        (["--workers", "0"], "--workers 0 must be between 1 and 256"),
        (["--store", "memory://", "--workers", "2"], "memory:// lives in one process"),
        (["--store", "nonsense://"], "names no store"),
        (["--url", "nonsense://"], "names no store"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key go together; give both"),
        (["--host", "192.0.2.1", "--auth", "required"], "nothing can listen"),
        (["--config", "bad.toml"], "unknown field `prot`; did you mean port?"),
        (["--config", "quota.toml"], "`rte` - at `$.quotas[...]`; did you mean rate?"),
        (["--config", "kind.toml"], "kind.toml does not fit: Expected `int`"),
        (["--config", "span.toml"], "span.toml does not fit: --grace 'soon' is"),
        (["--config", "choice.toml"], "'requird' - at `$.auth`; there are auto, off, required"),
        (["--host", "192.0.2.1", "--auth", "required"], "must be an address of this machine"),
        (["--socket", "nowhere/x.sock"], "in a folder that exists"),
        (["--socket", f"/tmp/{'x' * 120}.sock"], "--socket a short path"),
        (["--socket", "x.sock", "--socket-mode", "rw"], 'written as for chmod: "600"'),
        (["--config", "strange.toml"], "push_networks has '10.0.0.1/8'"),
        (["--allow-network", "10.0.0.1/8"], "write 10.1.0.0/16"),
    ],
)
def test_check_says_what_cannot_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("prot = 1\n")
    (tmp_path / "quota.toml").write_text("quotas.shop.rte = 5\n")
    (tmp_path / "kind.toml").write_text('workers = "two"\n')
    (tmp_path / "choice.toml").write_text('auth = "requird"\n')
    (tmp_path / "span.toml").write_text('grace = "soon"\n')
    (tmp_path / "strange.toml").write_text('push_networks = ["10.0.0.1/8"]\n')
    done = CliRunner().invoke(main, ["serve", "--check", "--port", "0", *arguments])
    assert done.exit_code == 2
    assert text in done.stderr


def test_tokens_are_no_help_to_a_server_that_asks_for_none(run: Callable[..., Result]) -> None:
    assert run("token", "create", "--scope", "admin").exit_code == 0
    arguments = "serve", "--check", "--port", "0", "--host", "0.0.0.0"
    assert run(*arguments).exit_code == 0
    refused = run(*arguments, "--auth", "off")
    assert refused.exit_code == 2
    assert "requests need no token; make one with" in refused.stderr


def test_check_tells_of_a_port_that_is_taken(run: Callable[..., Result]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--check", "--port", str(port))
    where = f"nothing can listen on http://127.0.0.1:{port}"
    fix = "does another server use it?"
    assert f"{where}: Address already in use; {fix}" in done.stderr


def test_a_server_that_others_can_reach_does_not_start_without_tokens(tmp_path: Path) -> None:
    done = run_process(tmp_path, "serve", "--port", "0", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "bide token create" in done.stderr


def test_tokens_are_made_listed_and_revoked(tmp_path: Path, run: Callable[..., Result]) -> None:
    made = run("token", "create", "--namespace", "shop", "--scope", "produce")
    token = made.stdout.strip()
    assert token.startswith("bide_")
    listed = run("token", "list")
    assert "shop" in listed.stdout
    assert token not in listed.stdout
    assert token.split("_", 2)[2] not in (tmp_path / "bide.db").read_bytes().decode("latin-1")
    with ServerProcess(tmp_path) as server:
        with bide.Queue("orders", server.url.replace("//", f"//:{token}@")) as queue:
            assert token not in repr(queue)
            queue.put(1)
            with pytest.raises(bide.StoreError, match="no right 'read'"):
                queue.counts()
            id = token.split("_")[1]
            assert run("token", "revoke", id).stdout == f"{id} is revoked\n"
            with pytest.raises(bide.StoreError, match="was revoked") as refused:
                queue.put(2)
            assert token not in str(refused.value)
    assert token not in server.text
    assert "401" in server.text  # all of its log, now that it has ended
    assert run("token", "revoke", "nonsense").exit_code == 1


def test_sighup_opens_the_action_log_again(tmp_path: Path) -> None:
    log, moved = tmp_path / "actions.log", tmp_path / "actions.log.1"
    with ServerProcess(tmp_path, "--action-log", str(log)) as server:
        urllib.request.urlopen(f"{server.url}/v1/queues", timeout=60).close()
        log.rename(moved)
        server.reload()
        urllib.request.urlopen(f"{server.url}/v1/queues", timeout=60).close()
        deadline = time.monotonic() + 60
        while log.read_text().count('"act":"listQueues"') < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert moved.read_text().count('"act":"listQueues"') == 1
    assert log.stat().st_mode & 0o777 == 0o600


def test_failed_logins_count_for_all_processes_together(tmp_path: Path) -> None:
    def guess(port: int) -> int:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"authorization": "Bearer bide_4be0643f1d98_wrong"}
        connection.request("GET", "/v1/queues", headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status

    with ServerProcess(tmp_path, "--workers", "3", "--auth", "required") as server:
        # Each on a connection of its own, so that all processes are asked.
        found = [guess(server.port) for _ in range(MAX_FAILED_LOGINS + 10)]
    assert found == [401] * MAX_FAILED_LOGINS + [429] * 10
