"""Interrupts at any place of a call: no false answer, no dead thread, and the books balance."""

import gc
import itertools
import logging
import sys
from contextlib import suppress
from functools import partial

import pytest

import bide
from bide import threads
from bide.testing.hooks import lane_of
from bide.threads import deaths
from tests.effort import effort, one_in
from tests.stores_of_each_kind import STORES
from tests.system.faults.ledger import Ledger
from tests.system.faults.strikes import Late, alarms, own_threads, raise_in, strike_at_entry
from tests.unit.lane.commands import PATIENCE, spawn
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.own_process,
    # An exception that strikes a finalizer is reported by Python, and goes no further.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Python closes a socket whose making was interrupted before anything had a name for it.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


ERRORS = Late, TimeoutError, KeyboardInterrupt


@pytest.mark.parametrize("url", one_in(3, STORES), indirect=True)
def test_a_signal_handler_that_raises(url: str) -> None:
    for error in ERRORS:  # in one process, whose start takes longer than the calls
        with alarms(error) as strikes:
            ledger = Ledger(url, strikes, name=error.__name__)
            ledger.turn()
            threads = {thread.name for thread in own_threads()}
            while strikes.hits < effort(120, 2_000):
                ledger.turn()
        assert threads <= {thread.name for thread in own_threads()}
        assert ledger.problems() == []
        gc.collect()  # what it finds is of this error


def claim_and_release(queue: bide.Queue) -> None:
    deliveries = queue.claim(lease="1h")
    sys.settrace(None)
    queue.release(deliveries)


def take_and_leave(queue: bide.Queue) -> None:
    with suppress(KeyboardInterrupt), queue.take(wait=0, lease="1h"):
        sys.settrace(None)
        raise KeyboardInterrupt


@pytest.mark.parametrize("url", one_in(2, STORES), indirect=True)
def test_a_claim_that_is_struck_before_it_returns_keeps_no_message(url: str) -> None:
    """At each function that it enters, among them those that make the deliveries."""
    with bide.Queue("q", url) as queue:
        queue.put(1)
        for call in (claim_and_release, take_and_leave):
            call(queue)  # it loads modules
            for number in itertools.count(1):
                is_struck = strike_at_entry(number, partial(call, queue))
                queue.put("later", delay="1h", id="later")  # the engine gives back with a command
                until(lambda: queue.counts().sizes.ready == 1)
                if not is_struck:
                    break
            assert number > 20


# An error may also strike where CPython begins or ends a thread; there it is printed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "url", one_in(2, ["memory", "sqlite", "redis", "postgres", "http"]), indirect=True
)
def test_the_death_of_threads_of_its_own(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call ends, with an answer or because it is unknown; claims that wait go on."""
    caplog.set_level(logging.CRITICAL, "bide")
    monkeypatch.setattr(threads, "PAUSE", 0.001)
    for error in (SystemExit, RuntimeError):
        let_threads_die(url, error)


def let_threads_die(url: str, error: type[BaseException]) -> None:
    """Raise an error in the threads of two queues that are in use, again and again."""
    before, strikes = deaths.total(), itertools.count()
    work, news = f"work-{error.__name__}", f"events-{error.__name__}"
    with bide.Queue(work, url) as queue, bide.Queue(news, url) as events:

        def wait_for_an_event() -> object:
            while True:
                with suppress(bide.OutcomeUnknown, error):  # it was asking when the thread died
                    for delivery in events.claim(wait="10m"):
                        return delivery.body

        waiting = spawn(wait_for_an_event)
        put: set[str] = set()
        perhaps: set[str] = set()
        while deaths.total() < before + effort(20, 2_000):
            for thread in own_threads():
                raise_in(thread, error)
            id = f"m{next(strikes)}"
            perhaps.add(id)
            with suppress(bide.OutcomeUnknown, error):
                queue.put(id, id=id)
                put.add(id)
            with suppress(bide.OutcomeUnknown, error):
                events.claim(wait=0.001)  # by way of the thread
        until(lambda: lane_of(events).is_idle)
        events.put("go on")
        assert waiting.result(PATIENCE) == "go on"
        there = {message.id for message in queue.scan()}
        assert put <= there <= perhaps
        assert queue.audit()
        assert events.audit()
