"""`bide doctor` and `bide init`."""

import json
from pathlib import Path

import pytest

import bide
from tests.system.cli.conftest import Bide, Terminal


def test_a_danger_is_told_with_loss_and_fix_and_ends_with_1(run: Bide, tmp_path: Path) -> None:
    assert run("init").exit_code == 0
    tmp_path.chmod(0o777)
    done = run("doctor")
    assert done.exit_code == 1
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    (danger,) = [line for line in lines if "may change the folder" in line[1]]
    assert danger[0] == "danger"
    assert danger[2:] == ["others delete or replace the store", f"chmod o-w {tmp_path}"]
    found = [json.loads(line) for line in run("doctor", "--json").stdout.splitlines()]
    assert [list(one.values()) for one in found] == lines
    assert list(found[0]) == ["level", "what", "loss", "fix"]


def test_a_store_may_be_named_as_an_argument(run: Bide) -> None:
    done = run("doctor", "memory://")
    assert done.exit_code == 1
    assert "memory of one process" in done.stdout
    assert run("doctor", "http://host:1").exit_code == 2
    assert run("doctor", "redis://127.0.0.1:1").exit_code == 3


def test_a_terminal_shows_the_fix_and_a_warning_is_no_failure(
    run: Bide, url: str, terminal: Terminal, tmp_path: Path
) -> None:
    run("init")
    (tmp_path / "test.db").chmod(0o644)
    found = run("doctor").stdout.splitlines()
    shown, code = terminal("doctor", url)
    # The file system of the tests may be one in memory, which is a danger.
    assert code == any(line.startswith("danger") for line in found)
    assert "warning" in shown
    assert "chmod o-rwx" in shown


def test_all_messages_are_looked_at_if_it_is_asked_for(
    run: Bide, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.put_many(bide.NewMessage(body="x" * 300) for _ in range(2_000))
    monkeypatch.setattr("bide.cli.service.doctor.LONGEST", -1)
    assert "too large to be checked for damage" in run("doctor").stdout
    assert "too large" not in run("doctor", "--all").stdout


def test_init_says_where_the_store_is(run: Bide, url: str) -> None:
    assert run("init").stdout == f"url\t{url}\nqueues\t0\n"
    run("token", "create", "--rights", "put")  # in a queue of bide's own, which no command counts
    assert run("init").stdout == f"url\t{url}\nqueues\t0\n"
    assert run("queues").exit_code == 0
