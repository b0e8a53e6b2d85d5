"""`bide top --url http://...`: what it hears of a server, and what happens when that goes away."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import bide
from bide.cli import main
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing.hooks import lane_of
from tests.system.cli.conftest import BOUND, environment
from tests.system.cli.test_top import Live
from tests.system.server.conftest import running
from tests.system.server.process import ServerProcess
from tests.system.server.test_events import say
from tests.system.worker.processes import wait_for, worker

Top = Callable[..., Result]


@pytest.fixture
def server(url: str) -> Iterator[str]:
    """Provide the URL of a server on the store of the other fixtures."""
    with running(ServerApp(Settings(store=url))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def top(server: str) -> Top:
    def call(*arguments: str, **more: str) -> Result:
        env = {"BIDE_URL": server, "COLUMNS": "100", **more}
        return CliRunner().invoke(main, ["top", *arguments], env=env)

    return call


def test_it_tells_the_same_as_of_the_store_itself(
    top: Top, url: str, orders: bide.Queue, run: Top
) -> None:
    orders.put_many(range(3), delay=60)
    orders.put_many(["due", "due too"])
    (held,) = orders.claim()
    say(url, "web1:7", "orders", "other", late=0.2)
    here, there = run("top", "--once", "--json"), top("--once", "--json")
    found, heard = json.loads(here.output), json.loads(there.output)
    for one in (found, heard):
        for at_work in one["workers"]:
            at_work.pop("seen")
        one["queues"][0].pop("late")
        assert one.pop("now") > 1_700_000_000_000
        forecast = one.pop("forecast")  # a new hour may have begun between the two
        assert (sum(forecast["counts"]), forecast["overdue"]) == (3, 1)
    assert found == heard
    assert found["queues"][0]["lateness"] == {"p50": 250, "p99": 250, "count": 1}
    idle, busy = sorted(found["workers"], key=lambda one: int(one["holds"]))
    assert (idle["holder"], idle["queues"]) == ("web1:7", {"orders": 0, "other": 0})
    assert busy["queues"] == {"orders": 1}
    rows = [line.split("\t") for line in top().output.splitlines()]
    same = [line.split("\t") for line in run("top").output.splitlines()]
    rows[0][6] = same[0][6] = "late"
    assert rows.pop()[0] == same.pop()[0] == "forecast"
    assert rows == same
    assert rows[0][:6] == ["queue", "orders", "3", "1", "1", "0"]
    assert rows[0][-2:] == ["250", "250"]
    assert rows[2] == ["worker", "web1:7", "0", "orders:0,other:0"]
    held.ack()


def test_what_bide_keeps_for_itself_is_left_out(top: Top, orders: bide.Queue, url: str) -> None:
    orders.put(1)
    with bide.Queue("bide:move", url) as ledger:
        ledger.put(1)
    assert [line.split("\t")[1] for line in top().output.splitlines()] == ["orders"]
    rows = [line.split("\t") for line in top("bide:").output.splitlines()]
    own = {row[1] for row in rows if row[0] == "queue"}  # another one is of the forecast
    assert {"bide:move"} <= own <= {"bide:move", "bide:zones"}  # a server looks after local dates


def test_only_queues_of_a_prefix(top: Top, orders: bide.Queue, url: str) -> None:
    orders.put(1)
    with bide.Queue("mail", url) as mail:
        mail.put(1)
    assert [line.split("\t")[1] for line in top("ma").output.splitlines()] == ["mail"]
    assert top("x").output == ""


def test_the_token_is_that_of_the_environment_or_the_url(url: str, orders: bide.Queue) -> None:
    orders.put(1)
    with bide.Queue("shop/orders", url) as queue:
        queue.put_many([1, 2])
    tokens = Tokens(lane_of(orders))
    reads = tokens.create("shop", ["read"])[0]
    puts = tokens.create("shop", ["put", "change"])[0]
    with running(ServerApp(Settings(store=url, auth="required"))) as port:

        def call(at: str, token: str) -> Result:
            env = {"BIDE_URL": f"http://{at}127.0.0.1:{port}", "BIDE_TOKEN": token}
            return CliRunner().invoke(main, ["top"], env=env)

        for result in (call("", reads), call(f":{reads}@", "")):
            assert result.output.split("\t")[:4] == ["queue", "orders", "0", "2"]
        for token, why in (
            ("", "asks for a token: set BIDE_TOKEN"),
            (puts, "no right 'read'"),
            ("x", "unknown"),
        ):
            result = call("", token)
            assert (result.exit_code, why in result.stderr) == (3, True), result.stderr


def test_a_token_of_a_namespace_sees_the_workers_that_use_the_store_itself(url: str) -> None:
    with bide.Queue("shop/orders", url) as orders:
        orders.put(1)
        say(url, "web1:7", "shop/orders", late=0.2)
        reads = Tokens(lane_of(orders)).create("shop", ["read"])[0]
        with running(ServerApp(Settings(store=url, auth="required"))) as port:
            env = {"BIDE_URL": f"http://127.0.0.1:{port}", "BIDE_TOKEN": reads}
            result = CliRunner().invoke(main, ["top", "--once", "--json"], env=env)
    told = json.loads(result.output)
    assert [one["holder"] for one in told["workers"]] == ["web1:7"]
    assert told["queues"][0]["lateness"] == {"p50": 250, "p99": 250, "count": 1}


def test_where_no_forecast_is_allowed_it_shows_the_counts(url: str, orders: bide.Queue) -> None:
    orders.put(1, delay=60)
    reads = Tokens(lane_of(orders)).create(None, ["read"])[0]
    app = ServerApp(Settings(store=url, auth="required", max_slow_reads=1))
    with running(app) as port, app.service.gate.slow_calls.counting(None, ""):
        env = {"BIDE_URL": f"http://127.0.0.1:{port}", "BIDE_TOKEN": reads}
        result = CliRunner().invoke(main, ["top"], env=env)
    assert result.stdout.split("\t")[:3] == ["queue", "orders", "1"]
    assert "forecast" not in result.stdout
    assert result.stderr.startswith(
        "there is no forecast: the namespace (of the whole store) has 1"
    )


def test_nobody_there(run: Top) -> None:
    result = run("top", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 3
    assert "http://127.0.0.1:1 cannot be reached" in result.stderr
    result = run("top", "--url", "http://:1")
    assert result.exit_code == 2


@pytest.mark.full
@pytest.mark.process
def test_a_server_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        port, url = server.port, server.url
        command = [sys.executable, "-m", "bide", "top", "--json", "--interval", "100ms"]
        with (
            bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db") as orders,
            subprocess.Popen(
                command,
                env=environment(url),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as watching,
        ):
            assert watching.stdout is not None
            assert watching.stderr is not None
            orders.put(1)

            def heard(count: int, *others: str) -> Any:
                while True:
                    assert watching.stdout is not None
                    first, *further = json.loads(watching.stdout.readline())["queues"] or [None]
                    names = [queue["queue"] for queue in further]
                    if first and (first["put"], names) == (count, list(others)):
                        return first

            heard(1)
            assert "rates" in heard(1)
            with bide.Queue("typo", orders.url) as typo:
                typo.put(1, id="a")
                heard(1, "typo")
                typo.cancel("a")
                typo.delete()
                heard(1)
            server.kill()
            assert "waiting for it" in watching.stderr.readline()
            orders.put(2)
            with ServerProcess(tmp_path, "--port", str(port)):
                heard(2)
                watching.send_signal(signal.SIGINT)
                assert watching.wait(BOUND) == 0


@pytest.mark.full
@pytest.mark.process
def test_on_a_terminal_it_says_that_the_server_is_away(tmp_path: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db") as orders:
        orders.put_many(range(3), delay=60)
        with ServerProcess(tmp_path) as server:
            port = server.port
            live = Live(server.url, "--interval", "100ms")
            try:
                live.until("3 delayed")
                server.kill()
                live.until("the store is away: http://127.0.0.1")
                orders.put_many(range(4), delay=60)
                with ServerProcess(tmp_path, "--port", str(port)):
                    live.until("7 delayed")
                    live.process.send_signal(signal.SIGINT)
                    assert live.process.wait(BOUND) == 0
                    assert "Traceback" not in live.seen
            finally:
                live.close()


APP = """
import bide
app = bide.App()

@app.handler("orders")
async def handle(body: int) -> None: ...
"""


@pytest.mark.process
def test_a_worker_is_seen_before_it_ever_had_work(
    tmp_path: Path, server: str, top: Top, run: Top, orders: bide.Queue
) -> None:
    orders.counts()
    (tmp_path / "bide.db").symlink_to("test.db")
    with worker(tmp_path, APP):
        wait_for(lambda: "orders:0" in run("top").output, tmp_path)
        assert "orders:0" in top().output
        orders.put(1)
        wait_for(lambda: "lateness" in top("--once", "--json").output, tmp_path)
    assert "worker" not in run("top").output
    assert "bide:workers" not in run("queues").output
