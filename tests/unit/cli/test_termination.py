"""Signals that end a command, and work that ends first."""

import os
import signal
from collections.abc import Iterator

import pytest

from bide.cli.errors import end_on_termination_as_first_process, stop_requests

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Begin as a command in a terminal does, however the tests were started."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_end_of_the_step(number: signal.Signals) -> None:
    with stop_requests() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop == [number]


def signalled_twice(number: signal.Signals) -> None:
    with stop_requests():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_does_not_wait(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        signalled_twice(number)


def test_handlers_are_as_before_and_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_requests():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_sigterm_ends_the_first_process_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    end_on_termination_as_first_process()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    monkeypatch.setattr(os, "getpid", lambda: 1)
    end_on_termination_as_first_process()
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        signal.raise_signal(signal.SIGTERM)
