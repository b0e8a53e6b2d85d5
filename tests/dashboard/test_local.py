"""`bide dashboard`: a server for the user of this machine."""

import http.client
import json
import socket
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from click.testing import CliRunner

import bide
from bide.cli import main
from tests.dashboard.chromium import dashboard

pytestmark = pytest.mark.process


def ask(
    base: str, method: str, path: str, fields: dict[str, str] | None = None, **headers: str
) -> tuple[int, str]:
    """Send a request; return the status and the text of the answer."""
    connection = http.client.HTTPConnection(str(urlsplit(base).netloc), timeout=60)
    data = None if fields is None else urlencode(fields)
    connection.request(method, path, data, headers)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def test_it_serves_this_machine_and_logs_actions(tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/shop.db", tmp_path / "actions.log"
    with bide.Queue("orders", url) as orders:
        orders.put(1, id="order-42", delay=60)
        pause = {"action": "pause", "queue": "orders", "on": "1", "back": "/"}
        with dashboard(url, "--action-log", str(log)) as base:
            status, page = ask(base, "GET", "/message?queue=orders&id=order-42")
            assert (status, "order-42" in page) == (200, True)
            assert "hx-get" in page
            status, page = ask(base, "GET", "/", Host="evil.example")
            assert (status, "orders" in page) == (403, False)
            assert ask(base, "POST", "/do", pause, Host="evil.example")[0] == 403
            assert ask(base, "POST", "/do", pause, Origin="https://evil.example")[0] == 403
            assert ask(base, "GET", "/v1/queues")[0] == 404  # it is no server of the API
            assert not orders.counts().paused
            assert ask(base, "POST", "/do", pause)[0] == 303
            assert orders.counts().paused
        lines = map(json.loads, log.read_text().splitlines())
        (line,) = (line for line in lines if line["act"] != "show")
        assert (line["act"], line["who"], line["queue"]) == ("pause", "ann", "orders")
        orders.resume()
        with dashboard(url, "--read-only") as base:
            assert ask(base, "GET", "/")[0] == 200
            assert ask(base, "POST", "/do", pause)[0] == 403
        assert not orders.counts().paused


def test_mistakes_are_explained(tmp_path: Path) -> None:
    run = CliRunner().invoke
    missing = run(main, ["dashboard", f"sqlite:///{tmp_path}/none.db"])
    assert missing.exit_code == 3
    assert "there is no store" in missing.output
    memory = run(main, ["dashboard", "memory://"])
    assert memory.exit_code == 2
    assert "no other process sees" in memory.output
    url = f"sqlite:///{tmp_path}/shop.db"
    with bide.Queue("orders", url) as orders:
        orders.put(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = run(main, ["dashboard", url, "--port", port])
    assert busy.exit_code == 2
    assert "does another server use it?" in busy.output
