"""One call over one connection: signals while the server works, and large arguments."""

import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import StrEnum
from types import FrameType
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from bide import Queue
from bide.engines.postgres.connection import PostgresCaller
from bide.engines.postgres.settings import read_url


class Interrupted(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def sleeper(postgres_url: Callable[[], str]) -> Iterator[PostgresCaller]:
    """Provide a caller of PostgreSQL's own functions."""
    with closing(read_url(urlsplit(postgres_url())).connect()) as connection:
        yield PostgresCaller(connection, "pg_catalog", prepares=True)


@pytest.fixture
def interrupts() -> Iterator[threading.Timer]:
    """Provide a timer that sends this process a signal whose handler raises."""

    def strike(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, strike)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    yield timer
    timer.cancel()
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_interrupts_a_call_and_closes_the_connection(
    sleeper: PostgresCaller, interrupts: threading.Timer
) -> None:
    interrupts.start()
    with pytest.raises(Interrupted):
        sleeper("pg_sleep", struct.pack("!d", 60.0))
    assert sleeper.connection.closed  # the answer would be taken for that of the next call
    assert sleeper.has_news()


def test_what_is_larger_than_a_buffer_of_the_socket_arrives(sleeper: PostgresCaller) -> None:
    body = os.urandom(1 << 20) * 16
    ((answer,),) = sleeper("decode", body.hex(), "hex")
    assert answer == body


def test_a_transaction_is_undone_by_a_refusal_and_the_connection_is_used_again(
    sleeper: PostgresCaller,
) -> None:
    def number() -> bytes:
        ((number,),) = sleeper("pg_current_xact_id")  # 8 bytes, which grow
        return bytes(number)

    with sleeper.transaction():
        first = number()
        sleeper.start("clock_timestamp")
        assert number() == first
    with pytest.raises(psycopg.errors.InvalidParameterValue), sleeper.transaction():  # noqa: PT012
        assert number() > first
        sleeper.start("decode", "00", "no encoding")
        number()
    with pytest.raises(psycopg.errors.InvalidParameterValue), sleeper.transaction():
        sleeper.start("decode", "00", "no encoding")  # is refused with the commit
    with pytest.raises(ZeroDivisionError), sleeper.transaction():  # noqa: PT012
        sleeper.start("pg_advisory_lock", 1)
        raise ZeroDivisionError
    assert number() != number()
    assert sleeper.connection.info.transaction_status == TransactionStatus.IDLE


class Name(StrEnum):
    """Names as an application may declare them."""

    QUEUE = "orders"
    MESSAGE = "order-42"
    GROUP = "customer-7"


def test_names_may_be_members_of_an_enumeration(postgres_url: Callable[[], str]) -> None:
    with Queue(Name.QUEUE, postgres_url()) as queue:
        assert queue.put(1, id=Name.MESSAGE, group=Name.GROUP)
        assert [message.id for message in queue.scan(group=Name.GROUP)] == [Name.MESSAGE]
        assert queue.cancel(group=Name.GROUP) == 1
