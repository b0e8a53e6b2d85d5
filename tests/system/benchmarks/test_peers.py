"""`python -m benchmarks peers`: works of a tiny peer, cells that are stopped, table and charts."""

import argparse
import json
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers.budget import Budget
from benchmarks.peers.catalogue import Peer, peers
from benchmarks.peers.command import add_options, main
from benchmarks.peers.handled import PROBE, Handled, HandledLog
from benchmarks.peers.installing import PROGRAMS, Uninstallable, command_of
from benchmarks.peers.report import Row, better, markdown, reasons, write
from benchmarks.peers.servers import SERVERS, Server
from benchmarks.peers.session import Failed, Session, Stopped, session
from benchmarks.peers.works import WORKS, Cell, Scene, measure

TINY = """
import json
import time
from pathlib import Path

from benchmarks.peers.programs.protocol import Peer, hold, note, run, settings, store


class Tiny(Peer):
    def prepare(self):
        print("what a peer prints is no answer")

    def put_each(self, calls):
        time.sleep(settings().get("seconds", 0))
        with Path(store()).open("a") as file:
            file.writelines(json.dumps(call.arguments) + "\\n" for call in calls)
        return [call.number for call in calls]

    def cancel_each(self, keys):
        raise ValueError(f"no message {keys[0]}")

    def work(self):
        with Path(store()).open() as file:
            while True:
                line = file.readline()
                if not line:
                    time.sleep(0.01)
                    continue
                number, due, seconds, _ = json.loads(line)
                if due > time.time() + 1000:  # nobody waits for these
                    continue
                time.sleep(max(0, due - time.time()))
                hold(seconds)
                note(number, due)
                time.sleep(settings().get("handling", 0))


run(Tiny)
"""


@contextmanager
def tiny(folder: Path, share: float = 30, **settings: float) -> Iterator[Session]:
    """A peer of a few lines: its messages are in a file, and its worker is never idle for long."""
    program = folder / "tiny.py"
    program.write_text(TINY)
    store = folder / "store"
    store.touch()
    server = Server(str(store), lambda: store.stat().st_size)
    with session([sys.executable, str(program)], server, settings, folder, share) as opened:
        yield opened


@pytest.mark.process
def test_works_of_a_peer(tmp_path: Path) -> None:
    with tiny(tmp_path) as opened:
        cell = measure("put", Scene(opened, 0.01), 30)
    assert cell.state == "measured"
    assert cell.value is not None
    assert cell.value > 0
    assert cell.text.endswith(" /s")


@pytest.mark.process
def test_what_a_peer_does_not_offer(tmp_path: Path) -> None:
    with tiny(tmp_path) as opened:
        cell = measure("list", Scene(opened, 0.01), 30)
    assert (cell.state, cell.text, cell.value) == ("not offered", "not offered", None)
    assert cell.reason == "no call takes a list of messages with due times"


@pytest.mark.process
def test_an_error_of_a_peer_is_told(tmp_path: Path) -> None:
    with tiny(tmp_path) as opened:
        cell = measure("cancel", Scene(opened, 0.01), 30)
    assert (cell.state, cell.reason) == ("failed", "ValueError: no message 0")


@pytest.mark.process
def test_messages_are_handled_when_they_are_due(tmp_path: Path) -> None:
    with tiny(tmp_path) as opened:
        cell = measure("drain", Scene(opened, 0.001), 30)
    assert (cell.figures["handled"], cell.figures["messages"]) == (20, 20)
    assert cell.value is not None


@pytest.mark.process
def test_a_client_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    begin = time.monotonic()
    with tiny(tmp_path, share=1, seconds=60) as opened:
        cell = measure("put", Scene(opened, 0.01), 1)
    assert time.monotonic() - begin < 30
    assert (cell.state, cell.text, cell.value) == ("stopped", "(stopped after 1 s)", None)


@pytest.mark.full
@pytest.mark.process
def test_a_worker_that_takes_too_long_is_stopped_and_its_figure_is_shown(tmp_path: Path) -> None:
    with tiny(tmp_path, share=6, handling=0.7) as opened:
        cell = measure("drain", Scene(opened, 0.001), 6)
    assert cell.state == "stopped"
    assert 0 < cell.figures["handled"] < 20
    assert cell.text.endswith(f"{20 - cell.figures['handled']:.0f} missing (stopped after 6 s)")


@pytest.mark.process
def test_a_killed_worker_leaves_what_another_handles(tmp_path: Path) -> None:
    with tiny(tmp_path) as opened:
        opened.start_worker()
        opened.ask("put_at", first=0, count=3, due=time.time())
        assert len(opened.wait_for(3)) == 3
        assert opened.worker_memory() > 1_000_000
        opened.kill_worker()
        opened.start_worker(probe=False)  # this one reads the file from its beginning
        opened.ask("put_at", first=3, count=1, due=time.time())
        assert len(opened.wait_for(4)) == 4
        assert opened.log.again == 4  # the probe, too


@pytest.mark.full
@pytest.mark.process
def test_a_worker_is_killed_while_a_handler_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.works.HELD", 2)
    monkeypatch.setattr("benchmarks.peers.works.WAITING", 1)
    with tiny(tmp_path) as opened:
        cell = measure("killed", Scene(opened, 1), 30)
    assert cell.state == "measured"
    assert cell.text.startswith("3 of 3 in ")
    assert cell.figures["again"] == 1  # the probe: no handler had ended


@pytest.mark.process
def test_a_program_that_ends_says_why(tmp_path: Path) -> None:
    store = Server("", lambda: 0)
    command = [sys.executable, "-c", "raise SystemExit('no such peer')"]
    with session(command, store, {}, tmp_path, 30) as opened:
        with pytest.raises(Failed, match="no such peer"):
            opened.ask("put_at", first=0, count=0, due=0)


@pytest.mark.process
def test_a_wait_ends_at_its_time_or_with_the_share(tmp_path: Path) -> None:
    with tiny(tmp_path, share=1) as opened:
        assert opened.wait_for(1, time.time() + 0.1) == []
        with pytest.raises(Stopped):
            opened.wait_for(1)


def test_a_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    log = HandledLog(tmp_path / "log")
    assert log.read() == []
    log.path.write_text(f"{PROBE} 0 0\n7 10.0 10.5\n8 1")
    assert log.has_probe()
    assert log.read() == [Handled(7, 10.0, 10.5)]
    with log.path.open("a") as file:
        file.write("1.0 11.25\n7 10.0 99\n")
    assert [(handled.number, handled.late) for handled in log.read()] == [(7, 500), (8, 250)]
    assert (log.count(), log.again) == (2, 1)


def test_each_peer_has_a_program_servers_and_versions() -> None:
    for name, peer in peers().items():
        program = PROGRAMS / f"{name}.{'mjs' if peer.node else 'py'}"
        assert program.is_file(), program
        assert set(peer.stores) <= SERVERS.keys()
        assert all("==" in text for text in peer.python)
        assert all("@" in text for text in peer.node)
        assert bool(peer.tuned) == bool(peer.tuning), name


def test_versions_are_told_without_extras() -> None:
    peer = Peer("a", "A", ("redis",), python=("a[b,c]==1.2",), node=("d@3",))
    assert peer.versions == "a 1.2, d 3"


def test_bide_is_run_by_this_interpreter(tmp_path: Path) -> None:
    command = command_of(peers()["bide"], tmp_path)
    assert command == [sys.executable, "-m", "benchmarks.peers.programs.bide"]
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Uninstallable, match="no-such-server is not on PATH"):
        command_of(Peer("other", "Other", ("redis",), apt="no-such-server"), tmp_path)


def rows() -> list[Row]:
    def rate(work: str, value: float) -> Cell:
        return Cell(work, "measured", {"rate": value})

    def late(p99: float, handled: int = 20, early: int = 0) -> Cell:
        counts = {"handled": handled, "messages": 20, "early": early}
        return Cell("behind", "measured", {"p50": 1.0, "p99": p99, "max": 1_234.0, **counts})

    ours, other = Peer("bide", "bide", ("redis", "sqlite")), peers()["arq"]
    refused = Cell("list", "not offered", reason="no call takes a list")
    counts = {"handled": 5, "messages": 20, "wanted": 40}
    stopped = Cell("drain", "stopped", {"rate": 40.4, **counts}, share=60)
    return [
        Row(ours, "redis", False, {"put": rate("put", 5_000), "behind": late(2.5)}),
        Row(ours, "sqlite", False, {"put": rate("put", 9_000), "behind": late(1.5)}),
        Row(
            other,
            "redis",
            False,
            {"put": rate("put", 12_345), "list": refused, "drain": stopped, "behind": late(1, 11)},
        ),
        Row(other, "redis", True, {"behind": late(2.0)}),
        Row(peers()["rq"], "redis", False, {"behind": late(-900, early=3)}),
        Row(Peer("gone", "Gone", ("redis",)), "redis", False, {}, "npm is not on PATH"),
    ]


def test_a_table_says_what_was_stopped_refused_and_missing() -> None:
    lines = markdown(rows(), ["put", "list", "drain", "behind"]).splitlines()
    assert lines[2] == "| bide, redis | 5,000 /s |  |  | 1.0 / 2.5 / 1,230 ms |"
    assert lines[4] == (
        "| arq | 12,300 /s | not offered | 40 /s, 15 missing, 20 messages (stopped after 60 s) "
        "| 1.0 / 1.0 / 1,230 ms, 11 of 20 |"
    )
    assert lines[5] == "| arq, tuned |  |  |  | 1.0 / 2.0 / 1,230 ms |"
    assert lines[6] == "| RQ |  |  |  | 1.0 / -900 / 1,230 ms, 3 early |"
    assert lines[7].count("not installed") == 4
    assert any(line.startswith("- arq: arq 0.28.0") for line in lines)
    assert "times" not in lines[9]


def test_a_table_of_fewer_messages_says_so() -> None:
    assert "\n\n- All numbers of messages are times 0.05.\n" in markdown(rows(), ["put"], 0.05)


def test_what_a_peer_does_better_is_said_against_the_same_store() -> None:
    """What is early, or missing, is not better."""
    assert better(rows()) == [
        "arq does better than bide: put one by one (12,300 /s, bide 5,000).",
        "arq, tuned does better than bide: "
        "20 near behind 10,000 far: p50 / p99 / max (2.0 ms, bide 2.5).",
    ]


def test_what_was_not_measured_has_a_reason() -> None:
    assert reasons(rows()) == [
        "Gone: npm is not on PATH.",
        "arq, put in lists of 500: not offered: no call takes a list.",
    ]


def test_a_chart_for_each_column(tmp_path: Path) -> None:
    files = write(tmp_path / "made", rows(), ["put", "drain"])
    assert [path.name for path in files] == ["peers.md", "peers-put.svg", "peers-drain.svg"]
    tree = ET.parse(files[1])
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[1:] == [
        *("bide, redis", "5,000 /s", "bide, sqlite", "9,000 /s", "arq", "12,300 /s"),
        *("Gone", "not installed"),
    ]


@pytest.mark.full
@pytest.mark.process
def test_a_row_for_each_store_of_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.peers.command.INSTALLER", "true")
    monkeypatch.setattr("benchmarks.peers.command.signal.signal", lambda *_: None)
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = ["--peer", "bide", "--work", "put", "--scale", "0.01", "--json"]
    assert main(parser.parse_args([*options, "--write", str(tmp_path / "made")])) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["row"] for line in lines] == ["bide, redis", "bide, sqlite", "bide, postgres"]
    assert all(line["put"]["state"] == "measured" for line in lines)
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"peers.md", "peers-put.svg"}


def test_cells_divide_the_time_that_is_left() -> None:
    now = 0.0
    budget = Budget(100, 400, lambda: now)
    spent: list[float] = []
    for _ in range(10):  # each takes all that it may
        spent.append(budget.take(40))
        now += spent[-1]
    assert spent[0] == 40 * 1.5 * 100 / 400
    assert all(seconds > 0 for seconds in spent)
    assert sum(spent) <= 101


def test_a_cell_that_is_quick_leaves_its_time_to_the_others() -> None:
    budget = Budget(100, 400, lambda: 0.0)
    assert budget.take(40) == 15
    assert budget.take(40) > 15
    budget.skip(300)
    assert budget.take(20) == 20


def test_each_work_has_a_share_and_a_figure() -> None:
    assert all(work.share > 0 and work.key and work.unit for work in WORKS.values())
