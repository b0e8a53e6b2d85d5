"""How what is logged gets to stderr."""

import io
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from bide.consuming.settling import describe
from bide.observing.logs import REMIND_SECONDS, PlainFormatter, Tracebacks, configure


@pytest.fixture
def log(root_log: None) -> logging.Logger:
    """A logger whose root a test configures."""
    return logging.getLogger("test.logs")


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


def test_a_full_disk_under_the_log_harms_nothing(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115  (closing it raises, too)
    monkeypatch.setattr("sys.stderr", full)
    configure(as_json=True, level="info")
    log.warning("what is not written")
    with suppress(OSError):
        full.close()


def test_a_handler_that_closes_stderr_harms_only_the_log(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        configure(as_json=False, level="info")
        log.info("before")
    log.info("after")
    assert (tmp_path / "log").read_text().endswith("before\n")


def test_a_wrong_call_is_told_and_harms_nothing(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=False, level="info")
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
        raise ValueError("x\x1b[31mRED\x00\x9b\u202e\u2028")
    except ValueError as error:
        log.error("it failed: %s", error, exc_info=True)
    written = capsys.readouterr().err
    assert r"x\x1b[31mRED\x00\x9b\u202e\u2028" in written
    assert not {"\x1b", "\x00", "\x9b", "\u202e", "\u2028"} & set(written)
    assert "Traceback" in written.splitlines()[1]


def test_half_a_character_loses_no_record(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=True, level="info")
    log.warning("no file %s", "\udcff", extra={"reason": "\udcff", "counts": {"\udcff": 1}})
    entry = msgspec.json.decode(capsys.readouterr().err)
    assert entry["message"] == "no file ?"
    assert (entry["reason"], entry["counts"]) == ("?", {"?": 1})


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


def fail(log: logging.Logger, error: Callable[[], object], level: int = logging.WARNING) -> None:
    try:
        error()
    except (KeyError, ValueError, TypeError) as raised:
        log.log(level, "it failed", extra={"reason": describe(raised)})


def test_the_traceback_of_a_cause_is_shown_once(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=False, level="info")
    (formatter,) = [handler.formatter for handler in logging.getLogger().handlers]
    assert isinstance(formatter, PlainFormatter)
    for _ in range(2):
        for text in ("x", "y"):
            fail(log, lambda text=text: int(text))  # type: ignore[misc]
        fail(log, lambda: dict[str, int]()["key"], logging.ERROR)
    lines = capsys.readouterr().err.splitlines()
    assert sum("it failed" in line for line in lines) == 6
    assert [line for line in lines if "Error: " in line] == [
        "ValueError: invalid literal for int() with base 10: 'x'",
        "KeyError: 'key'",
    ]
    later = logging.makeLogRecord({"msg": "again", "created": time.time() + REMIND_SECONDS + 60})
    try:
        raise ValueError("z")
    except ValueError as raised:
        later.reason = describe(raised)
        assert "ValueError: z" in formatter.format(later)
        assert formatter.format(later).count("\n") == 0


def test_at_debug_every_failure_has_its_traceback(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=False, level="debug")
    for _ in range(2):
        fail(log, lambda: int("x"))
    assert capsys.readouterr().err.count("Traceback (most recent call last)") == 2


def test_frames_of_libraries_are_folded(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(as_json=False, level="info")
    fail(log, lambda: msgspec.json.decode(b"1", type=str))  # one frame: ours
    fail(log, lambda: json.loads("{", object_hook=dict))
    fail(log, lambda: json.loads("{"))
    lines = capsys.readouterr().err.splitlines()
    assert sum("frames in json" in line for line in lines) == 2
    assert sum("in raw_decode" in line for line in lines) == 2
    assert sum("in test_" in line or "in <lambda>" in line for line in lines) == 3


def test_the_memory_of_causes_has_a_bound() -> None:
    shown = Tracebacks()
    for number in range(3_000):
        assert shown.admit(f'KeyError: 1\n  File "shop.py", line {number}, in pay', 0.0)
    assert len(shown.shown) == 1_000
    assert not shown.admit("buried by hand\nfor two reasons", 0.0)


def test_what_a_handler_does_with_stderr_harms_no_log(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(as_json=False, level="info")
    with redirect_stderr(io.StringIO()) as caught:
        log.info("still in the log")
    assert (caught.getvalue(), "still in the log" in capsys.readouterr().err) == ("", True)
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):  # closed by a handler, or by what began the program
        monkeypatch.setattr(sys, "stderr", stream)
        configure(as_json=False, level="info")
        log.error("lost")
        log.error("%d is wrong", "a")
