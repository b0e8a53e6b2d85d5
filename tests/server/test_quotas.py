"""Quotas hold for all processes of a server together."""

import json
import os
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from bide.server.uses import Uses, make_file
from tests.server.process import ServerProcess

Q = "/v1/queues/orders"


def test_a_record_is_that_of_its_namespace() -> None:
    uses = Uses()
    for number, name in enumerate((None, "shop", "mail", "shop")):
        with uses.of(name) as use:
            use.allowance += number
    found = []
    for name in (None, "shop", "mail", "new"):
        with uses.of(name) as use:
            found.append((use.allowance, use.counted))
    assert found == [(0.0, float("-inf")), (4.0, float("-inf")), (2.0, float("-inf")),
                     (0.0, float("-inf"))]  # fmt: skip
    uses.close()


def test_an_error_changes_nothing_and_keeps_nobody_waiting() -> None:
    uses = Uses()

    def fail() -> None:
        with uses.of("shop") as use:
            use.allowance = 9
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    with uses.of("shop") as use:
        assert use.allowance == 0
    uses.close()


COUNTING = """
import sys
from bide.server.uses import Uses
uses = Uses(int(sys.argv[1]))
for number in range(2_000):
    with uses.of(f"n{number % 50}") as use:
        use.pending += 1
"""


@pytest.mark.process
def test_no_count_of_several_processes_is_lost() -> None:
    descriptor = make_file()
    words = [sys.executable, "-c", COUNTING, str(descriptor)]
    processes = [subprocess.Popen(words, pass_fds=[descriptor]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0] * 3
    uses = Uses(descriptor)
    total = 0.0
    for number in range(50):
        with uses.of(f"n{number}") as use:
            total += use.pending
    assert total == 6_000
    assert os.fstat(descriptor).st_size == 50 * 48
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
