"""Journals on disk: what a process wrote is read, and a history of any size is checked."""

from pathlib import Path
from typing import Any

import pytest

from bide.testing.history import Journal, JournalFile, check, journals_in


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w1.journal")
    journal.tries("put", ids=["a"])
    journal.did("put", ids=["a"])
    journal.unknown("cancel", id="a")
    journal.close()
    with (tmp_path / "w1.journal").open("a") as file:
        file.write('{"did": "pu')
    read = JournalFile(tmp_path / "w1.journal")
    events: list[Any] = list(read)
    assert [event.get("did") for event in events] == [None, "put", None]
    assert events[2]["unknown"] == "cancel"
    assert events[0]["at"] > 0
    assert read.name == "w1"
    assert list(read) == events, "it can be read again"


def test_a_history_is_checked_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bide.testing.history.checker.PART_BYTES", 1_000)
    journal = Journal(tmp_path / "w1.journal")
    for number in range(100):
        id = f"m{number}"
        journal.tries("put", ids=[id])
        journal.did("put", ids=[id])
        if number % 10:
            messages = [{"id": id, "until": 9_000, "due": 0, "attempt": 1}]
            journal.did("claim", now=5, token=number, messages=messages)
            journal.did("ack", id=id, token=number, done=True)
    journal.close()
    parts: list[int] = []
    result = check(journals_in(tmp_path), advance=parts.append)
    assert len(parts) > 10
    assert (result.confirmed, result.delivered, result.acked) == (100, 90, 90)
    assert sorted(violation.id or "" for violation in result.violations) == sorted(
        f"m{number}" for number in range(0, 100, 10)
    )
    assert result.lateness == [5] * 90
