"""How what is logged gets to stderr."""

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from bide.observing.logs import configure


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger whose root is configured by a test, and put back afterwards."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.logThreads, logging._srcfile
    yield logging.getLogger("test.logs")
    root.handlers, root.level, logging.logThreads, logging._srcfile = before


def test_a_record_is_an_object_with_what_it_tells_of(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=True, level="info")
    log.info("done with %s", "a", extra={"queue": "orders", "attempt": 2, "secret": "x"})
    entry = msgspec.json.decode(capsys.readouterr().err)
    assert entry["message"] == "done with a"
    assert (entry["level"], entry["queue"], entry["attempt"]) == ("info", "orders", 2)
    assert isinstance(entry["pid"], int)
    assert entry["time"].endswith("+00:00")
    assert "secret" not in entry


def test_lines_of_one_moment_are_gathered(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        log.info("one")
        log.info("two")
        assert capsys.readouterr().err == ""
        written = ""
        async with asyncio.timeout(20):
            while not written:
                await asyncio.sleep(0.01)
                written = capsys.readouterr().err
        assert [line.rpartition(" ")[2] for line in written.splitlines()] == ["one", "two"]

    configure(as_json=False, level="info", gather=True)
    asyncio.run(work())


def test_a_warning_is_written_at_once_behind_what_came_before(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> str:
        log.info("before")
        log.warning("beware")
        return capsys.readouterr().err

    configure(as_json=True, level="info", gather=True)
    lines = asyncio.run(work()).splitlines()
    assert [msgspec.json.decode(line)["message"] for line in lines] == ["before", "beware"]


def test_where_no_loop_runs_nothing_is_kept_back(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=False, level="info", gather=True)
    log.info("alone")
    assert capsys.readouterr().err.endswith("alone\n")


def test_the_last_lines_are_written_when_the_process_ends(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        log.info("last words")

    configure(as_json=False, level="info", gather=True)
    asyncio.run(work())
    for handler in logging.getLogger().handlers:
        handler.flush()  # as logging.shutdown does
    assert capsys.readouterr().err.endswith("last words\n")


def test_a_wrong_call_is_told_and_harms_nothing(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=False, level="info", gather=True)
    log.info("%d", "no number")
    log.info("goes on")
    written = capsys.readouterr().err
    assert "--- Logging error ---" in written
    assert written.endswith("goes on\n")


def test_control_characters_do_not_reach_the_terminal(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=False, level="info")
    try:
        raise ValueError("x\x1b[31mRED\x00\x9b")
    except ValueError as error:
        log.error("it failed: %s", error, exc_info=True)
    written = capsys.readouterr().err
    assert "x\\x1b[31mRED\\x00\\x9b" in written
    assert not {"\x1b", "\x00", "\x9b"} & set(written)
    assert "Traceback" in written.splitlines()[1]


def test_half_a_character_loses_no_record(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=True, level="info")
    log.warning("no file %s", "\udcff", extra={"reason": "\udcff", "counts": {"\udcff": 1}})
    entry = msgspec.json.decode(capsys.readouterr().err)
    assert entry["message"] == "no file \\udcff"
    assert (entry["reason"], entry["counts"]) == ("\\udcff", {"\\udcff": 1})


def test_a_line_has_date_and_zone_whatever_the_process_is_set_to(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(as_json=False, level="info")
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        log.info("here")
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    written = datetime.fromisoformat(capsys.readouterr().err.partition(" ")[0])
    assert written.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - written) < timedelta(minutes=1)


@pytest.mark.parametrize(("level", "shown"), [("info", False), ("debug", True)])
def test_the_traceback_stands_below_a_failure(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], level: str, shown: bool
) -> None:
    configure(as_json=False, level=level)
    reason = "ValueError: no\nTraceback (most recent call last):\n  File x"
    log.warning("m failed: ValueError: no", extra={"reason": reason})
    assert ("\nTraceback" in capsys.readouterr().err) == shown
    log.error("m is dead now: ValueError: no", extra={"reason": reason})
    assert capsys.readouterr().err.endswith("no\nTraceback (most recent call last):\n  File x\n")
