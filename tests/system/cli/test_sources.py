"""`bide sources`."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

import bide
from bide.model.commands import Count
from bide.model.replies import Counts
from bide.testing.hooks import execute
from bide.worker.process.runner import Runner

Bide = Callable[..., Result]
Terminal = Callable[..., tuple[str, int]]
HOME = "bide:source:orders:unpaid"


def work(app: bide.App, home: str, **reached: int) -> None:
    """Run an app until the counters of a queue are so far."""

    async def until_reached() -> None:
        runner = Runner(app)
        task = asyncio.create_task(runner.run())
        async with bide.AsyncQueue(home, app.url) as windows:
            while True:
                flow = (await windows.counts()).flow
                if all(getattr(flow, name) >= count for name, count in reached.items()):
                    break
                await asyncio.sleep(0.005)
        runner.stop()
        await task

    asyncio.run(asyncio.wait_for(until_reached(), 20))


def an_app(url: str, answer: Callable[[], list[bide.NewMessage]]) -> bide.App:
    app = bide.App(url)
    app.source("orders", every="1m", window="10m", name="unpaid")(lambda after, before: answer())
    return app


def test_what_a_source_has_done(run: Bide, url: str) -> None:
    messages = [bide.NewMessage(1, delay=60, id=f"o{number}") for number in range(3)]
    work(an_app(url, lambda: messages), HOME, acked=1)
    facts: dict[str, Any] = json.loads(run("sources", "--json").output)
    last = facts.pop("last")
    assert facts["next"] > last["ended"]
    assert {key: facts[key] for key in facts if key != "next"} == {
        "queue": "orders",
        "name": "unpaid",
        "state": "delayed",
        "every": 60_000,
        "window": 600_000,
        "put": 3,
        "attempt": 0,
    }
    assert (last["found"], last["put"]) == (3, 3)
    asked_after = last["before"] - last["after"] - 1_200_000  # since the worker began
    assert 0 <= asked_after < 60_000
    line = run("sources").output.rstrip("\n").split("\t")
    assert line[:3] == ["orders", "unpaid", "delayed"]
    assert line[6:] == ["3", "3", "3", "0", ""]
    assert f"{HOME}\t1\t0\t0\t0\n" in run("queues", "--all").output


def test_what_went_wrong(run: Bide, url: str, terminal: Terminal) -> None:
    def broken() -> list[bide.NewMessage]:
        raise OSError("the database is down")

    work(an_app(url, broken), HOME, retried=1)
    facts = json.loads(run("sources", "--json").output)
    assert facts["error"].startswith("OSError: the database is down\nTraceback")
    assert facts["attempt"] == 1
    assert "last" not in facts
    assert run("sources").output.rstrip("\n").endswith("\t1\tOSError: the database is down")
    seen, code = terminal("sources", COLUMNS="140")
    assert code == 0
    assert " unpaid" in seen
    assert "OSError: the database is down" in seen


def test_a_store_without_sources(run: Bide, orders: bide.Queue, terminal: Terminal) -> None:
    orders.put(1)
    assert (run("sources").output, run("sources").exit_code) == ("", 0)
    assert "no worker with a source has run on sqlite:///" in terminal("sources")[0]


def test_a_store_that_is_not_there(run: Bide) -> None:
    done = run("sources")
    assert done.exit_code == 3
    assert "there is no store at" in done.stderr


def test_the_counts_of_a_source_balance(run: Bide, url: str) -> None:
    work(an_app(url, list), HOME, acked=1)
    assert run("audit").exit_code == 0
    with bide.Queue(HOME, url) as windows:
        found = execute(windows, Count(HOME))
    assert isinstance(found, Counts)
    assert (found.flow.put, found.flow.acked, found.kept) == (2, 1, 1)
