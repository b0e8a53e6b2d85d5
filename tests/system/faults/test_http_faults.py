"""A server behind a network that loses replies: every answer is true, and nothing is done twice."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

import bide
from bide.engines.port import Identity
from bide.engines.registry import opener
from bide.model.commands import Cancel, Count, Put
from bide.model.errors import OutcomeUnknown, StoreUnavailable
from bide.model.message import Item, Message
from bide.model.replies import Counts, Outcomes
from tests.effort import effort
from tests.proxy import Fault, Faults, Proxy
from tests.system.faults.ledger import Ledger
from tests.system.faults.strikes import Struck
from tests.system.server.process import ServerProcess

pytestmark = pytest.mark.process

R = TypeVar("R")

STORES = {"memory": "memory://", "sqlite": "sqlite:///store.db?durability=normal"}

LOST: tuple[Fault, ...] = ("lose", "cut", "reset", "half", "crumbs")
"""What may happen to a request of which the client hears at once."""


@pytest.fixture(params=STORES, scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), "--store", STORES[request.param]) as one:
        yield one


@pytest.fixture(params=["sqlite", pytest.param("memory", marks=pytest.mark.full)])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """Provide a server with a new store."""
    with ServerProcess(tmp_path, "--store", STORES[request.param]) as one:
        yield one


class Lossy:
    """A queue behind a proxy, and the same queue without one."""

    def __init__(self, proxy: Proxy, server: ServerProcess, name: str) -> None:
        self.proxy = proxy
        self.queue = bide.Queue(name, f"http://127.0.0.1:{proxy.port}")
        self.there = bide.Queue(name, server.url)
        self.queue.put(0, id="first", delay="1d")  # from now on the store knows the sender

    def __call__(self, fault: Fault, call: Callable[[], R]) -> R:
        """Return the answer of a call whose first request meets a fault."""
        self.proxy.strike(fault)
        answer = call()
        assert self.proxy.struck
        return answer

    def stored(self, id: str) -> Message:
        """Return a message as it is in the store."""
        message = self.there.get(id)
        assert message is not None
        return message

    def close(self) -> None:
        self.queue.close()
        self.there.close()


@pytest.fixture
def lossy(
    proxy_before: Callable[[str | int], Proxy],
    server: ServerProcess,
    request: pytest.FixtureRequest,
) -> Iterator[Lossy]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    lossy = Lossy(proxy_before(server.port), server, f"q{name}")
    yield lossy
    lossy.close()


@pytest.mark.parametrize("fault", LOST)
def test_a_change_whose_reply_was_lost_is_answered_as_if_it_had_come(
    lossy: Lossy, fault: Fault
) -> None:
    queue, there = lossy.queue, lossy.there
    put = lossy(fault, lambda: queue.put(1, id="a", delay="1h"))
    assert (put.done, put.state) == (True, "delayed")
    assert lossy(fault, lambda: queue.put(1, id="a", delay="1h")).done is False
    lossy(fault, lambda: queue.put(1, id="b", delay="1h", on_conflict="raise"))
    with pytest.raises(bide.AlreadyExists):
        lossy(fault, lambda: queue.put(1, id="b", delay="1h", on_conflict="raise"))
    assert lossy(fault, lambda: queue.put(2, id="b", delay="1h", on_conflict="replace"))
    assert lossy.stored("b").body == 2
    many = lossy(fault, lambda: queue.put_many([1, 2, 3], delay="1h", group="many"))
    assert [bool(one) for one in many] == [True] * 3

    moved = lossy(
        fault, lambda: queue.reschedule("b", delay="3h", if_version=lossy.stored("b").version)
    )
    assert moved
    assert lossy(fault, lambda: queue.edit("b", body=3, if_version=lossy.stored("b").version))
    assert lossy.stored("b").body == 3
    assert lossy(fault, lambda: queue.cancel("a"))
    assert not lossy(fault, lambda: queue.cancel("a"))
    assert lossy(fault, lambda: queue.cancel(group="many")) == 3
    flow = there.counts().flow
    assert (flow.put, flow.cancelled) == (6, 4)
    assert there.audit()


@pytest.mark.parametrize("fault", LOST)
def test_a_delivery_whose_replies_were_lost_happens_once(lossy: Lossy, fault: Fault) -> None:
    queue, there = lossy.queue, lossy.there
    queue.put_many([1, 2, 3, 4])
    (first,) = lossy(fault, lambda: queue.claim(1))
    assert (first.body, first.attempt) == (1, 1)
    lossy(fault, lambda: first.extend("5m"))
    lossy(fault, first.ack)
    retried, buried, released = lossy(fault, lambda: queue.claim(3))
    lossy(fault, lambda: retried.retry(delay="1h"))
    lossy(fault, lambda: buried.bury("broken"))
    lossy(fault, released.release)
    dead = lossy.stored(buried.id)
    assert (dead.state, len(dead.failures)) == ("dead", 1)
    (revived,) = lossy(fault, lambda: queue.revive([buried.id], delay="1h"))
    assert revived
    assert lossy.stored(buried.id).state == "delayed"
    (again,) = lossy(fault, lambda: queue.claim(1))
    lossy(fault, lambda: again.bury("broken"))
    assert lossy(fault, lambda: queue.purge(state="dead")) == 1
    counts = there.counts()
    assert counts.flow.put == 5
    assert (counts.flow.acked, counts.flow.died, counts.flow.revived) == (1, 2, 1)
    assert (counts.flow.retried, counts.flow.purged) == (1, 1)
    assert there.audit()


@pytest.mark.parametrize("fault", LOST)
def test_a_setting_and_the_end_of_a_queue(lossy: Lossy, fault: Fault) -> None:
    queue, there = lossy.queue, lossy.there
    lossy(fault, lambda: queue.configure(keep="1h"))
    assert there.counts().keep == 3_600_000
    lossy(fault, lambda: queue.configure(keep=0))
    lossy(fault, queue.pause)
    assert there.counts().paused
    lossy(fault, queue.resume)
    lossy(fault, lambda: queue.cancel("first"))
    lossy(fault, queue.delete)
    assert there.counts().flow.put == 0


def test_a_message_that_was_handled_meanwhile_is_not_put_again(
    lossy: Lossy, proxy_before: Callable[[str | int], Proxy], server: ServerProcess
) -> None:
    """The repetition of a put comes when a worker has acked its message."""
    handled: list[str] = []

    def work(answer: bytes) -> bytes:
        for delivery in lossy.there.claim(wait="20s"):
            handled.append(delivery.id)
            delivery.ack()
        lossy.proxy.rewrite = lambda data: data
        lossy.proxy.cut_all()
        return answer

    lossy.proxy.rewrite = work
    assert lossy.queue.put(1, id="order-42")
    assert lossy.there.claim(5) == []
    assert handled == ["order-42"]


def test_a_server_that_is_killed_before_its_answer_has_remembered_it(
    tmp_path: Path, proxy_before: Callable[[str | int], Proxy]
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tmp_path, "--store", store))
        port = str(server.port)
        proxy = proxy_before(server.port)
        engine = opener(f"http://127.0.0.1:{proxy.port}")()
        stack.callback(engine.close)
        put, cancel = Put("q", [Item("order-42", b"1", delay=60_000)]), Cancel("q", ["order-42"])
        engine.execute([put], None, [Identity("lane:a", 1, 0)])
        proxy.strike("lose")
        with pytest.raises(OutcomeUnknown):
            engine.execute([cancel], None, [Identity("lane:a", 2, 0)])
        server.kill()
        stack.enter_context(ServerProcess(tmp_path, "--port", port, "--store", store))
        (reply,) = engine.execute([cancel], None, [Identity("lane:a", 2, 0, repeated=True)])
        assert isinstance(reply, Outcomes)
        assert [outcome.done for outcome in reply.outcomes] == [True]
        (counts,) = engine.execute([Count("q")])
        assert isinstance(counts, Counts)
        assert counts.flow.cancelled == 1


def test_calls_wait_for_a_server_that_restarts(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tmp_path, "--store", store))
        queue = stack.enter_context(bide.Queue("q", f"{server.url}?reconnect=60s"))
        impatient = stack.enter_context(bide.Queue("q", f"{server.url}?reconnect=0"))
        assert queue.put(1, id="a", delay="1h")
        assert impatient.get("a")
        server.kill()
        with pytest.raises(StoreUnavailable):
            impatient.put(1, id="b")
        pool = stack.enter_context(ThreadPoolExecutor(2))
        put = pool.submit(queue.put, 2, id="c", delay="1h")
        cancelled = pool.submit(queue.cancel, "a")
        assert not wait([put, cancelled], timeout=0.2).done
        again = ServerProcess(tmp_path, "--port", str(server.port), "--store", store)
        stack.enter_context(again)
        assert put.result(60)
        assert cancelled.result(60)
        assert impatient.get("c")


class Losses:
    """Has faults of the network strike calls: an error says that there is no answer."""

    def __init__(self) -> None:
        self.without_answer = 0

    def during(self, call: Callable[[], R]) -> "R | Struck":
        try:
            return call()
        except StoreUnavailable:  # OutcomeUnknown is one
            self.without_answer += 1
            return Struck.STRUCK


def test_faults_at_random_lead_to_no_false_answer(
    proxy_before: Callable[[str | int], Proxy], own_server: ServerProcess
) -> None:
    proxy = proxy_before(own_server.port)
    losses = Losses()
    ledger = Ledger(f"http://127.0.0.1:{proxy.port}?timeout=0.5s", losses)
    proxy.faults = Faults(0.1, seed=1)
    while proxy.faults.counts.total() < effort(30, 300):
        ledger.turn()
    proxy.faults = None
    assert ledger.problems() == []
