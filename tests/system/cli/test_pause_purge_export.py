"""`bide pause`, `resume`, `purge`, `export` and `import`."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import bide
from bide.cli.queues.export import opened

Bide = Callable[..., Result]
Terminal = Callable[..., tuple[str, int]]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


def test_pause_and_resume(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    assert run("pause", "orders").exit_code == 0
    assert run("claim", "orders").exit_code == 1
    assert json.loads(run("resume", "orders", "--json").output) == {
        "queue": "orders",
        "paused": False,
    }
    assert run("claim", "orders").exit_code == 0


def test_a_pause_ends_by_itself(run: Bide, terminal: Terminal, orders: bide.Queue) -> None:
    orders.put(1)
    until = ("--until", "2080-12-01T09:00Z")
    told = json.loads(run("pause", "orders", *until, "--json").output)
    assert told == {"queue": "orders", "paused": True, "paused_until": 3_500_269_200_000}
    listed = json.loads(run("queues", "--json").output)
    assert (listed["paused"], listed["paused_until"]) == (True, 3_500_269_200_000)
    assert run("queues").output.endswith("\tpaused\n")
    for command in ("claim", "queues", "counts"):
        arguments = ("orders",) if command != "queues" else ()
        output, _code = terminal(command, *arguments)
        assert "paused until 2080-12-01 09:00" in output
    sooner = json.loads(run("pause", "orders", "--for", "1h", "--json").output)
    assert sooner["paused_until"] == orders.counts().paused_until
    both = run("pause", "orders", "--for", "1h", *until)
    assert (both.exit_code, "give --until or --for, not both" in both.stderr) == (2, True)
    past = run("pause", "orders", "--until", "2020-12-01T09:00Z")
    assert (past.stdout, past.exit_code) == ("queue\torders\npaused\tfalse\n", 0)
    assert run("claim", "orders").exit_code == 0


def test_a_queue_that_is_new_by_a_slip_of_the_pen_is_told(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    assert run("pause", "orders").stderr == ""
    result = run("pause", "odrers")
    assert (result.stdout, result.exit_code) == ("queue\todrers\npaused\ttrue\n", 0)
    assert result.stderr.startswith("odrers is new: there was no such queue in sqlite:///")
    assert run("pause", "odrers").stderr == ""
    assert run("resume", "odrers").exit_code == 0
    result = run("resume", "orders2")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr.startswith("error: there is no queue 'orders2' in sqlite:///")
    assert result.stderr.endswith("; there are: orders, odrers\n")
    assert run("queues").stdout.count("\n") == 2
    result = run("close-group", "ordres", "order:42")
    assert result.exit_code == 0
    assert result.stderr.startswith("ordres is new: there was no such queue in sqlite:///")
    assert run("close-group", "ordres", "order:42").stderr == ""


def test_a_queue_that_a_typo_made_can_be_deleted(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, delay="1h")
    run("pause", "odrers")
    assert run("delete", "odrers").output == "queue\todrers\ndeleted\ttrue\n"
    assert run("queues").stdout.startswith("orders\t")
    assert run("delete", "odrers").exit_code == 1
    result = run("delete", "orders")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert "queue 'orders' is not empty, so it was not deleted: 1 delayed. " in result.stderr


@pytest.mark.parametrize(
    "arguments", [["put", "q", "1"], ["counts", "q"], ["queues"], ["claim", "q"], ["push"]]
)
def test_a_store_in_memory_is_of_no_use_at_a_shell(run: Bide, arguments: list[str]) -> None:
    result = run(*arguments, "--url", "memory://")
    assert (result.stdout, result.exit_code) == ("", 2)
    assert "memory:// exists only while this command runs" in result.stderr


def test_purge_wants_a_yes(run: Bide, orders: bide.Queue) -> None:
    orders.put_many(range(2_200), delay=60)
    refused = run("purge", "orders", "--state", "delayed")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert orders.counts().sizes.delayed == 2_200
    assert run("purge", "orders", "--state", "delayed", "--yes").output == "purged\t2200\n"
    assert orders.counts().sizes.total == 0


def test_purge_cannot_take_what_is_held(run: Bide) -> None:
    assert run("purge", "orders", "--state", "leased", "--yes").exit_code == 2


def test_export_and_import_bring_everything_back(
    run: Bide, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put({"n": "é"}, id="a", delay=60, priority=3, group="g", headers={"k": "v"})
    orders.put(b"\xff", id="b")
    orders.put(1, id="c")
    orders.claim()
    lines = run("export", "orders").output
    assert len(lines.splitlines()) == 3
    into = f"sqlite:///{tmp_path / 'other.db'}"
    first = run("import", "copy", "--url", into, stdin=lines)
    assert (first.output, first.exit_code) == ("stored\t3\nkept\t0\nrefused\t0\n", 0)
    again = run("import", "copy", "--url", into, "--json", stdin=lines)
    assert json.loads(again.output) == {"stored": 0, "kept": 3, "refused": 0}
    with bide.Queue("copy", into) as copy:
        a, b = copy.get("a"), copy.get("b")
        assert a is not None
        assert b is not None
        assert (a.body, a.priority, a.group, a.headers) == ({"n": "é"}, 3, "g", {"k": "v"})
        assert b.body == b"\xff"
        assert copy.counts().sizes.total == 3


def test_export_to_a_file_and_import_from_it(run: Bide, orders: bide.Queue, tmp_path: Path) -> None:
    orders.put_many(range(1_500))
    path = str(tmp_path / "orders.jsonl")
    assert run("export", "orders", "-o", path).output == f"exported\t1500\nfile\t{path}\n"
    assert run("import", "copy", path).output == "stored\t1500\nkept\t0\nrefused\t0\n"


def test_a_line_that_is_none_stops_the_import(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    lines = run("export", "orders").output
    result = run("import", "copy", stdin=lines + "{oops\n")
    assert result.exit_code == 2
    assert "line 2" in result.stderr


def test_an_import_into_a_closed_group_says_what_was_refused(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, group="open")
    orders.put_many([2, 3], group="g")
    lines = run("export", "orders").output
    with bide.Queue("copy", orders.url) as copy:
        copy.close_group("g")
        result = run("import", "copy", stdin=lines)
        assert (result.stdout, result.exit_code) == ("stored\t1\nkept\t0\nrefused\t2\n", 1)
        assert "not stored: 2 messages, whose groups are closed\n" in result.stderr
        assert copy.counts().sizes.total == 1


def test_an_import_takes_any_limit_of_a_body(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    lines = run("export", "orders").output
    result = run("import", "copy", "--max-body", "9" * 20, stdin=lines)
    assert (result.stdout, result.exit_code) == ("stored\t1\nkept\t0\nrefused\t0\n", 0)


def test_an_import_from_a_file_that_is_not_there(run: Bide) -> None:
    result = run("import", "copy", "nowhere.jsonl")
    assert result.exit_code == 2
    assert "nowhere.jsonl" in result.stderr


def test_an_export_that_cannot_be_written(run: Bide, orders: bide.Queue, tmp_path: Path) -> None:
    orders.put(1)
    result = run("export", "orders", "-o", str(tmp_path / "no" / "such" / "folder.jsonl"))
    assert result.exit_code == 3
    assert f"{tmp_path}/no/such: No such file" in result.stderr


def test_an_export_that_fails_leaves_the_former_one(
    run: Bide, shell: Shell, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put_many(range(2_000))
    (tmp_path / "kept").mkdir()
    file = tmp_path / "kept" / "orders.jsonl"
    file.write_text("the former one")
    result = shell("ulimit -f 100; bide export orders -o kept/orders.jsonl")
    assert (result.returncode, result.stderr) == (3, "error: File too large\n")
    assert file.read_text() == "the former one"
    assert list(file.parent.iterdir()) == [file]


def test_an_export_to_a_pipe_is_written_to_it(
    shell: Shell, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put(1, id="a")
    os.mkfifo(tmp_path / "pipe")
    result = shell("cat pipe & bide export orders -o pipe; wait")
    assert '"id":"a"' in result.stdout
    assert (tmp_path / "pipe").is_fifo()


def test_an_export_keeps_the_mode_of_the_file_and_the_link_to_it(
    run: Bide, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put(1)
    file, link = tmp_path / "orders.jsonl", tmp_path / "link"
    file.touch(mode=0o600)
    link.symlink_to(file)
    run("export", "orders", "-o", str(link))
    assert link.is_symlink()
    assert len(file.read_text().splitlines()) == 1
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_export_that_is_told_to_end_leaves_the_former_one(tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("the former one")
    with pytest.raises(SystemExit, match="143"), opened(str(file)):
        os.kill(os.getpid(), signal.SIGTERM)
    assert file.read_text() == "the former one"
    assert list(tmp_path.iterdir()) == [file]
