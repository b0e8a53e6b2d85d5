"""The counts of quotas are shared by all processes of a server, and none is lost meanwhile."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Command, Put
from bide.model.errors import StoreUnavailable
from bide.model.message import Item
from bide.queue.stores import lane_to
from bide.server.access.rights import Caller
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.limits import quotas as module
from bide.server.limits.slow_reads import SlowReads
from bide.server.problem import Problem
from bide.server.settings import Quota, Settings
from bide.server.shared_state import (
    NEVER,
    Columns,
    QuotaUsage,
    SharedState,
    UnderWay,
    make_file,
    make_files,
)
from tests.system.server.client import Q
from tests.system.server.process import ServerProcess
from tests.waiting import until


def test_a_record_is_that_of_its_namespace() -> None:
    uses = QuotaUsage()
    for number, name in enumerate((None, "shop", "mail", "shop")):
        with uses.of(name) as use:
            use.stored.value += number
    found = []
    for name in (None, "shop", "mail", "new"):
        with uses.of(name) as use:
            found.append((use.stored.value, use.messages.after))
    assert found == [(0.0, NEVER), (4.0, NEVER), (2.0, NEVER), (0.0, NEVER)]
    uses.close()


def test_an_error_changes_nothing_and_keeps_nobody_waiting() -> None:
    uses = QuotaUsage()

    def fail() -> None:
        with uses.of("shop") as use:
            use.stored.value = 9
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    with uses.of("shop") as use:
        assert use.stored.value == 0
    uses.close()


COUNTING = """
import sys
from bide.server.shared_state import QuotaUsage
uses = QuotaUsage(int(sys.argv[1]))
for number in range(2_000):
    with uses.of(f"n{number % 50}") as use:
        use.messages.value += 1
"""


@pytest.mark.process
def test_no_count_of_several_processes_is_lost() -> None:
    descriptor = make_file()
    words = [sys.executable, "-c", COUNTING, str(descriptor)]
    processes = [subprocess.Popen(words, pass_fds=[descriptor]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0] * 3
    uses = QuotaUsage(descriptor)
    total = 0.0
    for number in range(50):
        with uses.of(f"n{number}") as use:
            total += use.messages.value
    assert total == 6_000
    assert os.fstat(descriptor).st_size == 50 * (16 + 10 * 8)
    uses.close()


@pytest.mark.process
def test_a_rate_holds_however_many_processes_there_are(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('workers = 3\n[quotas."*"]\nrate = 0.01\npending = 100\n')
    with ServerProcess(tmp_path, "--config", "serve.toml") as server:
        answers: list[tuple[int, Any]] = []

        def put(number: int) -> None:
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            kind = {"content-type": "application/json"}
            connection.request("POST", f"{Q}/messages", json.dumps({"body": number}), kind)
            reply = connection.getresponse()
            answers.append((reply.status, json.loads(reply.read())))
            connection.close()

        threads = [threading.Thread(target=put, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # One message at once, however slowly the bucket fills, and whichever process is asked.
        assert sorted(status for status, _ in answers) == [201] + [429] * 23
        assert "0.01 messages a second" in str(answers)


def test_a_count_that_is_under_way_ends_with_the_server() -> None:
    async def story() -> None:
        app, reads = ServerApp(Settings(store="memory://", auth="required")), asyncio.Event()

        async def hang(command: Command) -> None:
            reads.set()
            await asyncio.Event().wait()

        async with app.running():
            shop = Caller("shop", frozenset({"put"}))
            await app.service.lane.acall(Put("shop/q", [Item("a", b"1")]))
            app.service.slow_reads.read = hang  # type: ignore[method-assign, assignment]
            put = Put("shop/q", [Item("b", b"1")])
            admitting = asyncio.create_task(app.service.quotas.admit(shop, [put]))
            await reads.wait()
            admitting.cancel()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[module.Quotas]:
    """Provide quotas whose counts take no time."""
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    lane, usage = open_lane("memory://counting"), SharedState()
    settings = Settings(quotas={"shop": Quota(pending=10)})
    yield module.Quotas(settings, lane, SlowReads(lane), usage)
    usage.close()
    close_lane(lane)


SHOP = Caller("shop", frozenset(["put"]))
PUT = Put("shop/orders", [Item("m", b"1")])


def test_a_count_that_failed_is_repeated_as_soon_as_one_that_did_not(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StoreUnavailable("it is away")]

    async def count(what: str, names: list[str]) -> int:
        if failures:
            raise failures.pop()
        return 10

    async def story() -> None:
        with pytest.raises(StoreUnavailable):
            await counting.admit(SHOP, [PUT])
        with pytest.raises(Problem, match="may have 10 messages and has 10"):
            await counting.admit(SHOP, [PUT])

    monkeypatch.setattr(counting, "_total", count)
    monkeypatch.setattr(module, "COUNT_EVERY", -1.0)
    asyncio.run(story())


def test_a_put_waits_for_the_first_count_but_for_no_later_one_while_there_is_room(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        counted = asyncio.Event()

        async def count(what: str, names: list[str]) -> int:
            await counted.wait()
            return 8

        monkeypatch.setattr(counting, "_total", count)
        first, second = (asyncio.create_task(counting.admit(SHOP, [PUT])) for _ in range(2))
        await asyncio.sleep(0)
        assert [first.done(), second.done()] == [False, False]
        counted.set()
        await asyncio.gather(first, second)
        counted.clear()
        with counting.shared.of("shop") as use:
            use.messages.value = 0
        await asyncio.wait_for(counting.admit(SHOP, [PUT]), 60)
        counted.set()
        await asyncio.gather(*counting.counts_under_way.values())

    monkeypatch.setattr(module, "COUNT_EVERY", -100.0)
    asyncio.run(story())


def test_what_is_put_as_a_count_begins_is_counted_once(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        stored, named = 0, asyncio.Event()
        named.set()

        async def names(*_: object, **__: object) -> list[str]:
            await named.wait()
            return [PUT.queue]

        async def count(what: str, names: list[str]) -> int:
            return stored

        monkeypatch.setattr(counting, "_names", names)
        monkeypatch.setattr(counting, "_total", count)
        for _ in range(6):  # the second of them begins a count, which none waits for
            with await asyncio.wait_for(counting.admit(SHOP, [PUT]), 60):
                stored += 1
            named.clear()
        over = asyncio.ensure_future(asyncio.wait([*counting.counts_under_way.values()]))
        named.set()
        await over
        with counting.shared.of("shop") as use:
            assert use.messages.value == 6

    monkeypatch.setattr(module, "COUNT_EVERY", -100.0)
    asyncio.run(story())


def test_a_put_that_is_under_way_as_a_count_begins_is_counted(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(what: str, names: list[str]) -> int:
        return 0  # the store does not show it yet

    async def story() -> None:
        monkeypatch.setattr(counting, "_total", nothing)
        with await counting.admit(SHOP, [PUT] * 7):
            with pytest.raises(Problem, match="may have 10 messages and has 7"):
                await counting.admit(SHOP, [PUT] * 4)
            with await counting.admit(SHOP, [PUT] * 3):
                pass
        assert counting.state.under_way.of("shop") == (0, 0)

    monkeypatch.setattr(module, "COUNT_EVERY", -1.0)
    monkeypatch.setattr(module, "RECOUNT_EVERY", -1.0)
    asyncio.run(story())


CLIENTS = 12
EACH = 12

SETTINGS = """
store = "sqlite:///bide.db"
workers = 4
auth = "required"
[quotas.post]
pending = 60
[quotas.shop]
queues = 5
[quotas.hooks]
subscriptions = 3
"""


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Start a server of four processes; give its port, and a token of a namespace with quotas."""
    folder = tmp_path_factory.mktemp("shops")
    (folder / "bide.toml").write_text(SETTINGS)

    def shop(name: str) -> tuple[int, str]:
        with lane_to(f"sqlite:///{folder}/bide.db") as lane:
            return server.port, Tokens(lane).create(name, ["admin"])[0]

    with ServerProcess(folder, "--config", "bide.toml") as server:
        yield shop


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


@pytest.mark.process
def test_no_more_queues_than_the_quota(shops: Callable[[str], tuple[int, str]]) -> None:
    shop = shops("shop")
    put = at_once(shop, "PUT", lambda n: f"/v1/queues/q{n}/messages/m", {"body": 1})
    assert put == {201: 5, 507: CLIENTS * EACH - 5}
    assert len(read(shop, "/v1/queues")["queues"]) == 5


@pytest.mark.process
def test_no_more_messages_than_the_quota(shops: Callable[[str], tuple[int, str]]) -> None:
    shop = shops("post")
    put = at_once(shop, "PUT", lambda n: f"/v1/queues/q/messages/m{n}", {"body": 1, "delay": "1h"})
    assert set(put) == {201, 507}
    assert put[201] <= 60
    # A count beside puts may have one of them twice, and the next count, a second later, has not.
    until(lambda: read(shop, "/v1/usage")["messages"] == put[201])


@pytest.mark.process
def test_no_more_subscriptions_than_the_quota(shops: Callable[[str], tuple[int, str]]) -> None:
    shop = shops("hooks")
    body = {"queue": "q", "url": "https://hooks.example/"}
    put = at_once(shop, "PUT", lambda n: f"/v1/subscriptions/s{n}", body)
    assert put[201] == 3
    assert len(read(shop, "/v1/subscriptions")["subscriptions"]) == 3


@pytest.mark.process
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


@pytest.mark.process
def test_the_files_of_a_server_are_as_many_as_it_shares() -> None:
    files = make_files()
    SharedState(files).close()
