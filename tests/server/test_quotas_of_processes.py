"""Quotas hold for the processes of a server together, also for what they do at the same moment."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from bide.server.shared_state import Columns, SharedState, UnderWay, make_file, make_files
from tests.server.process import ServerProcess

pytestmark = pytest.mark.process

CLIENTS = 12
EACH = 12

SETTINGS = """
store = "sqlite:///bide.db"
workers = 4
auth = "required"
[quotas.shop]
pending = 60
queues = 5
subscriptions = 3
"""


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    """Start a server of four processes; give its port and a token of a namespace with quotas."""
    (tmp_path / "bide.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "bide", "token", "create", "--namespace", "shop"]
    command += ["--rights", "admin", "--url", "sqlite:///bide.db", "--json"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    with ServerProcess(tmp_path, "--config", "bide.toml") as server:
        yield server.port, json.loads(made.stdout)["token"]


def at_once(shop: tuple[int, str], method: str, path: Callable[[int], str], body: Any) -> Any:
    """Send many requests from many connections at the same time; return their statuses."""
    port, token = shop
    statuses: list[int] = []
    start = threading.Barrier(CLIENTS)

    def send(client: int) -> None:
        # Each on a connection of its own, so that all processes get some.
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        start.wait()
        for number in range(EACH):
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            target = path(client * EACH + number)
            connection.request(method, target, json.dumps(body), headers)
            statuses.append(connection.getresponse().status)
            connection.close()

    threads = [threading.Thread(target=send, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == CLIENTS * EACH
    return Counter(statuses)


def read(shop: tuple[int, str], path: str) -> Any:
    connection = HTTPConnection("127.0.0.1", shop[0], timeout=60)
    connection.request("GET", path, headers={"authorization": f"Bearer {shop[1]}"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def test_no_more_queues_than_the_quota(shop: tuple[int, str]) -> None:
    put = at_once(shop, "PUT", lambda n: f"/v1/queues/q{n}/messages/m", {"body": 1})
    assert put == {201: 5, 507: CLIENTS * EACH - 5}
    assert len(read(shop, "/v1/queues")["queues"]) == 5


def test_no_more_messages_than_the_quota(shop: tuple[int, str]) -> None:
    put = at_once(shop, "PUT", lambda n: f"/v1/queues/q/messages/m{n}", {"body": 1, "delay": "1h"})
    assert set(put) == {201, 507}
    assert put[201] <= 60
    assert read(shop, "/v1/usage")["messages"] == put[201]


def test_no_more_subscriptions_than_the_quota(shop: tuple[int, str]) -> None:
    body = {"queue": "q", "url": "https://hooks.example/"}
    put = at_once(shop, "PUT", lambda n: f"/v1/subscriptions/s{n}", body)
    assert put[201] == 3
    assert len(read(shop, "/v1/subscriptions")["subscriptions"]) == 3


def test_what_a_dead_process_had_under_way_does_not_count() -> None:
    columns, under_way = make_file(), make_file()
    here = UnderWay(Columns(columns), under_way)
    here.add("shop", 2, 20)
    program = (
        "import sys\n"
        "from bide.server.shared_state import Columns, UnderWay\n"
        "files = map(int, sys.argv[1:])\n"
        "UnderWay(Columns(next(files)), next(files)).add('shop', 5, 50)\n"
        "print('added', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(columns), str(under_way)],
        pass_fds=(columns, under_way),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"added\n"
    assert here.of("shop") == (7, 70)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert here.of("shop") == (2, 20)
    here.add("shop", -2, -20)
    assert here.of("shop") == (0, 0)
    os.close(columns)
    os.close(under_way)


def test_the_files_of_a_server_are_as_many_as_it_shares() -> None:
    files = make_files()
    SharedState(files).close()
