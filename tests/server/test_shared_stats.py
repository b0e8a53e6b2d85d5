"""Whichever process of a server is scraped, it tells what all of them have done."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from bide.model.commands import Claim
from bide.model.limits import MAX_TALLIES
from bide.model.message import Message
from bide.model.replies import Claimed
from bide.observing.tally import Tally
from bide.server.service import Service
from bide.server.settings import Settings
from bide.server.shared_state import ServerStats, SharedStats, make_file
from bide.targets.http.stats import Deliveries, PushStats
from tests.server.process import ServerProcess


def some(count: int, late: float = 0.0) -> ServerStats:
    """Return figures in which everything has happened so often, and so late."""
    tally = Tally(claims=count, claimed=count, running=count)
    tally.lateness.observe(late)
    told = Deliveries({"2xx": count}, running=count, taken_at=count)
    sent = PushStats({"shop": tally}, {"shop": told})
    return ServerStats({("put", 201): count}, {"put": late}, {"orders": tally}, sent, count)


def ended(descriptor: int) -> SharedStats:
    """Return the board of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: process.pid)
        return SharedStats(os.dup(descriptor))


def test_the_figures_of_all_are_added_up_and_of_the_dead_what_stays_true() -> None:
    descriptor = make_file()
    boards = [SharedStats(os.dup(descriptor)), SharedStats(os.dup(descriptor)), ended(descriptor)]
    for number, board in enumerate(boards, 2):
        board.post(some(number, 0.5))
    boards[0].post(some(5, 0.5))
    found = boards[1].together(some(5, 0.5))
    assert found.requests == {("put", 201): 14}
    assert found.seconds == {"put": 1.5}
    assert (found.waiting, found.processes) == (10, 2)
    tally, told = found.tallies["orders"], found.sent.deliveries["shop"]
    assert (tally.claims, tally.running, tally.lateness.count) == (14, 10, 3)
    assert (told.answers, told.running, told.taken_at) == ({"2xx": 14}, 10, 5)
    assert found.sent.tallies["shop"].claims == 14
    for board in boards:
        board.close()
    os.close(descriptor)


def test_a_board_of_one_process_needs_no_file_of_others() -> None:
    board = SharedStats()
    assert board.together(some(2)).requests == {("put", 201): 2}
    assert board.together(some(3)).requests == {("put", 201): 3}
    board.close()


def test_a_board_that_shrinks_and_grows_is_read_as_it_is() -> None:
    descriptor = make_file()
    board, other = SharedStats(os.dup(descriptor)), SharedStats(os.dup(descriptor))
    for count in (1, 500, 3, 2_000, 0, 70):
        board.post(ServerStats(dict.fromkeys([("put", n) for n in range(count)], 1)))
        assert len(other.together(ServerStats()).requests) == count
    assert os.fstat(descriptor).st_size < 200_000
    for one in (board, other):
        one.close()
    os.close(descriptor)


def test_claims_are_counted_for_so_many_queues() -> None:
    """A tenant may make, empty and delete queues without end."""
    service = Service(Settings(store="memory://tallies"))
    for number in (0, *range(1, MAX_TALLIES), 0, MAX_TALLIES):
        queue = f"q{number}"
        message = Message("m", queue, b"1", True, 0, 0, 1, 10, "leased")
        service.handed_out(Claim(queue, 1, 30_000, "w"), Claimed([message], 1, 0))
    assert len(service.tallies) == MAX_TALLIES
    assert service.tallies.keys() >= {"q0", f"q{MAX_TALLIES}"}
    assert service.tallies["q0"].claims == 2
    assert "q1" not in service.tallies


def test_of_processes_that_have_ended_so_many_queues_are_counted() -> None:
    descriptor = make_file()
    boards = [SharedStats(os.dup(descriptor)), ended(descriptor)]
    many = {f"q{number}": Tally(claims=1) for number in range(MAX_TALLIES + 1)}
    boards[1].post(ServerStats(tallies=many))
    gone = boards[0].together(ServerStats()).tallies
    assert (len(gone), "q0" in gone) == (MAX_TALLIES, False)
    for board in boards:
        board.close()
    os.close(descriptor)


DYING = """
import os, signal, sys
from bide.server.shared_state import SharedStats, ServerStats
SharedStats(int(sys.argv[1])).post(ServerStats({("put", 201): 7}, {"put": 0.1}, waiting=3))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_what_a_killed_process_has_posted_is_kept_to_the_hair() -> None:
    descriptor = make_file()
    board, sums = SharedStats(os.dup(descriptor)), []
    for number in range(1, 4):
        words = [sys.executable, "-c", DYING, str(descriptor)]
        dying = subprocess.Popen(words, pass_fds=[descriptor])
        assert dying.wait(60) == -signal.SIGKILL
        found = board.together(ServerStats({("put", 201): 1}, {"put": 0.7}))
        assert found.requests == {("put", 201): 1 + 7 * number}
        assert (found.waiting, found.processes) == (0, 1)
        sums.append(found.seconds["put"])
    assert sums == sorted(sums)
    assert sums[-1] == pytest.approx(1.0, abs=1e-5)
    board.close()
    os.close(descriptor)


def scraped(server: ServerProcess) -> dict[str, float]:
    """Return the samples of one scrape, which comes to any of the processes."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    samples = re.findall(r"^(bide_\S+?(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in samples}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.process
def test_a_scrape_tells_of_all_processes_and_no_counter_ever_goes_back(tmp_path: Path) -> None:
    puts = 'bide_http_requests_total{operation="put",status="201"}'
    with ServerProcess(tmp_path, "--workers", "3") as server:
        last: dict[str, float] = {}
        sent = 0

        def scrape() -> dict[str, float]:
            found = scraped(server)
            for name, value in last.items():
                if "_total" in name or "_bucket" in name or "_count" in name or "_sum" in name:
                    assert found[name] >= value, name
            last.update(found)
            return found

        def put(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
                try:
                    kind = {"content-type": "application/json"}
                    path = "/v1/queues/orders/messages"
                    connection.request("POST", path, '{"body": 1}', kind)
                    sent += connection.getresponse().status == 201
                except (OSError, HTTPException):
                    pass  # it was with the process that was killed
                connection.close()

        put(30)
        until(lambda: scrape().get(puts) == 30)
        until(lambda: scrape()["bide_http_processes"] == 3)
        first = set(server.workers())
        server.process.send_signal(signal.SIGHUP)
        until(lambda: not first & set(server.workers()) and len(server.workers()) == 3)
        assert scrape()[puts] == sent  # those that were replaced have told all
        put(10)
        until(lambda: scrape()[puts] == sent)
        victim = server.workers()[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in server.workers() and len(server.workers()) == 3)
        before = scrape()[puts]
        put(10)
        until(lambda: scrape()[puts] >= before + 9)
        until(lambda: scrape()["bide_http_processes"] == 3)
