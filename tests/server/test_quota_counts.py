"""The counts of quotas are shared by all processes of a server, and none is lost."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from bide.model.commands import Command, Put
from bide.model.message import Item
from bide.server.access.rights import Caller
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.server.shared_state import NEVER, QuotaUsage, make_file
from tests.server.process import ServerProcess

Q = "/v1/queues/orders"


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
            connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
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
