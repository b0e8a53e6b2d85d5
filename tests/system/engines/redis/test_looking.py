"""A connection looks for answers before its thread sleeps, and less often if they come late."""

from typing import Any
from urllib.parse import urlsplit

from bide.engines.redis.settings import read_url
from bide.engines.redis.wire import SELDOM, Wire, pack


def wire_to(url: str) -> Wire:
    settings = read_url(urlsplit(url))
    wire = Wire(settings.kind(**settings.arguments_at(settings.address)))
    wire.connect()
    return wire


def looks(wire: Wire, commands: int, *command: Any) -> list[int]:
    """Send a command so often; return at which times its answer was looked for."""
    looked: list[int] = []
    sent = 0
    poll = wire._looks_for

    def counted(timeout: int) -> object:
        if sent not in looked:
            looked.append(sent)
        return poll(timeout)

    wire._looks_for = counted
    while sent < commands:
        assert wire.exchange(pack(command), (b"",)) == [None]
        sent += 1
    wire._looks_for = poll
    return looked


def test_late_answers_are_looked_for_less_and_less_often(url: str) -> None:
    wire = wire_to(url)
    late = ("BLPOP", "nothing", "0.01")  # its answer comes after 10 ms
    assert looks(wire, 16, *late) == [0, 2, 6, 14]
    wire.close()


def test_one_late_answer_of_many_is_looked_for_at_last(url: str) -> None:
    wire = wire_to(url)
    wire._missed = SELDOM
    assert looks(wire, 2, "BLPOP", "nothing", "0.01") == [0]
    assert (wire._missed, wire._unlooked) == (SELDOM, 254)
    wire.close()
