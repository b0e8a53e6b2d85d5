"""Ctrl-C in the main thread: claims execute there, and what they brought is given back at once."""

import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import pytest

import bide
from bide.engines.redis.claim import _Claiming
from bide.engines.redis.wire import Wire, WireExchange
from bide.model.commands import Claim, Put
from bide.model.message import Item
from tests.system.engines.redis.conftest import Open
from tests.waiting import until


@pytest.fixture
def queue(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("q", url) as queue:
        queue.put("first")  # it opens the store
        queue.put("second")
        yield queue


def _interrupting(real: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    struck = False

    def interrupting(*arguments: Any, **named: Any) -> Any:
        nonlocal struck
        if struck:
            return real(*arguments, **named)
        struck = True
        if not before:
            real(*arguments, **named)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("no handler of SIGINT raised")

    return interrupting


PLACES = {
    "before it is sent": (Wire, "begin", True),
    "after it is sent": (Wire, "begin", False),
    "after it is answered": (WireExchange, "answers", False),
    "while the answer is read": (_Claiming, "reply", True),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupted_claim_gives_its_messages_back(
    queue: bide.Queue, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    owner, name, before = PLACES[place]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, _interrupting(getattr(owner, name), before=before))
        with pytest.raises(KeyboardInterrupt):
            queue.claim(1)
        until(lambda: queue.counts().sizes.leased == 0)
    deliveries = queue.claim(5)
    assert [(d.body, d.attempt) for d in deliveries] == [("first", 1), ("second", 1)]
    assert all(queue.ack(deliveries))


@pytest.mark.parametrize(("query", "trip"), [("", 3), ("&shards=3", 5)])
def test_an_interrupted_claim_of_many_gives_all_of_them_back(
    url: str, monkeypatch: pytest.MonkeyPatch, query: str, trip: int
) -> None:
    real, trips = WireExchange.answers, 0

    def answers(exchange: WireExchange) -> list[Any]:
        nonlocal trips
        trips += 1
        if trips == trip:
            signal.raise_signal(signal.SIGINT)
        return real(exchange)

    with bide.Queue("q", url + query) as queue:
        queue.put_many(range(2_400))
        with monkeypatch.context() as patched:
            patched.setattr(WireExchange, "answers", answers)
            with pytest.raises(KeyboardInterrupt):
                queue.claim(3_000)
        assert [delivery.attempt for delivery in queue.claim(2_400)] == [1] * 2_400


def test_what_a_claim_brought_is_not_kept_for_an_interrupt_that_did_not_come(
    open_engine: Open,
) -> None:
    engine = open_engine()
    engine.execute([Put("q", [Item(id, b"x" * 1_000_000, False) for id in "abcde"])])
    tracemalloc.start()
    try:
        engine.execute([Claim("q", 5, 60_000, "w")])
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1_000_000 < most


@pytest.mark.parametrize("before", [True, False])
def test_the_answer_to_an_interrupted_put_answers_nothing_else(
    queue: bide.Queue, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(WireExchange, "answers", _interrupting(WireExchange.answers, before=before))
        with pytest.raises(KeyboardInterrupt):
            queue.put("third", id="c")
    assert not queue.put("another", id="c").done
    assert [d.body for d in queue.claim(5)] == ["first", "second", "third"]


INTERRUPTED = """
import _thread, operator
from functools import partial
from bide.engines.redis.wire import pack

calls = [_thread.interrupt_main, partial(pack, ("WAIT", 1, 1000))]
try:
    list(map(operator.call, calls))  # between the two Python looks for no signal
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_while_a_number_is_packed_leaves_the_process_alive() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"interrupted\n")


def test_no_number_is_packed_while_a_connection_begins(
    url: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis-py does that, and an interrupt there would end the process, too."""
    words: list[object] = []
    pack_command = hiredis.pack_command

    def record(command: tuple[object, ...]) -> bytes:
        words.extend(command)
        packed: bytes = pack_command(command)  # type: ignore[arg-type]
        return packed

    monkeypatch.setattr(hiredis, "pack_command", record)
    open_engine(f"{url.rpartition('=')[0]}=63")  # with 0 it selects none
    assert words[words.index(b"SELECT") + 1] == "63"
    assert int not in set(map(type, words))


FIRST_CALLS = """
import sys
import bide

queue = bide.Queue("q", sys.argv[1])
before = set(sys.modules)
queue.put("first")
queue.claim()
print([name for name in set(sys.modules) - before if name.startswith("importlib")])
"""


@pytest.mark.process
def test_the_first_calls_import_no_part_of_importlib(url: str) -> None:
    """An interrupt in it would leave the lock of all imports with the main thread."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS, url], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
