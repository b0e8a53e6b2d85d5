"""Pickles of strangers run no code, and take no memory."""

import os
import pickle
import struct
import tracemalloc
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bide.importing.pickles import inflated, plain
from bide.importing.source import NotTakenOver


class Calls:
    """Is pickled as the call of a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read(protocol: int) -> None:
    value = {
        "args": (1, 2.5, "text", b"bytes", None, True, 10**30),
        "times": [datetime(2030, 1, 1, tzinfo=UTC), timedelta(hours=1)],
        "others": {Decimal("1.50"), uuid.UUID(int=7)},
    }
    assert plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    "call",
    [
        Calls(os.system, "touch ran"),
        Calls(eval, "open('ran', 'w')"),
        Calls(Path, "ran"),
        Calls(getattr, "", "join"),
        Calls(bytearray, 10**12),
        Calls(range, 10**12),
    ],
    ids=["system", "eval", "class", "getattr", "bytearray", "range"],
)
def test_nothing_else_is_called(
    call: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotTakenOver, match="which is no plain value"):
        plain(pickle.dumps({"args": [call]}))
    assert list(tmp_path.iterdir()) == []


def test_lists_that_multiply_or_contain_themselves_are_refused() -> None:
    many: list[Any] = ["x"] * 10
    for _ in range(9):
        many = [many] * 10
    endless: list[Any] = []
    endless.append(endless)
    for value in (many, endless, {"kwargs": {"a": many}}):
        with pytest.raises(NotTakenOver, match="more than 100,000 values, or contains itself"):
            plain(pickle.dumps(value))


@pytest.mark.parametrize("data", [b"", b"\x80\x05.", b"\x80\x05K\x01", b"no pickle", b"\x80\xff."])
def test_what_is_broken_is_refused(data: bytes) -> None:
    with pytest.raises(NotTakenOver, match="its pickle cannot be read"):
        plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r" + struct.pack("<I", 100_000_000) + b".",
        b"\x80\x02]p100000000\n.",
        b"\x80\x02" + b"N0" * 600_000 + b"N.",
    ],
    ids=["a place far out", "the same as text", "many steps"],
)
def test_a_few_bytes_do_not_ask_for_much_memory(data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(NotTakenOver, match="more than 1,000,000 steps"):
        plain(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_a_length_beyond_the_end_is_refused_before_memory_is_asked_for() -> None:
    with pytest.raises(NotTakenOver, match="cannot be read"):
        plain(b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".")


def test_what_inflates_without_end_is_refused() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(NotTakenOver, match="more than 1,000,000 bytes"):
        inflated(bomb, 1_000_000)
    with pytest.raises(NotTakenOver, match="cannot be decompressed"):
        inflated(b"\x78nonsense", 1_000)
    assert inflated(zlib.compress(b"text"), 1_000) == b"text"
