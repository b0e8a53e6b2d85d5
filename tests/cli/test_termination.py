"""Signals that end a command, and work that ends first."""

import os
import signal
from collections.abc import Iterator

import pytest

from bide.cli.errors import DeferredInterrupt

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
def test_a_signal_interrupts_at_once_what_is_not_deferred(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt().listening():
        os.kill(os.getpid(), number)


def two_steps(
    done: list[str], number: signal.Signals, *, checks: bool, twice: bool = False
) -> None:
    interrupt = DeferredInterrupt()
    with interrupt.listening():
        with interrupt.deferred():
            os.kill(os.getpid(), number)
            done.append("first")
            if twice:
                os.kill(os.getpid(), number)
            if checks:
                interrupt.check()
            done.append("second")
        done.append("after")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_deferred_signal_waits_for_the_end_of_the_step(number: signal.Signals) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        two_steps(done, number, checks=True)
    assert done == ["first"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_deferred_signal_ends_a_block_that_never_checks(number: signal.Signals) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        two_steps(done, number, checks=False)
    assert done == ["first", "second"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_does_not_wait(number: signal.Signals) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        two_steps(done, number, checks=False, twice=True)
    assert done == ["first"]


def test_handlers_are_as_before_and_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with DeferredInterrupt().listening():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
