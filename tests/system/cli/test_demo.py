"""`bide demo`: that it proves what it says, and that the proof can fail."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import bide
from bide.cli.demo.actors import QUEUE, DemoPlan
from bide.cli.demo.proof import DemoRecords, HandledOrder, percentile, prove
from bide.cli.demo.stage import Stage
from bide.model.replies import Counts, Flow, Sizes
from bide.queue.results import Audit
from tests.effort import one_in
from tests.system.cli.conftest import Terminal

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


def sound() -> tuple[DemoRecords, Audit]:
    """Four orders: two were paid, two timed out, one of them twice, for its worker was killed."""
    records = DemoRecords(
        put=["a", "b", "c", "d"],
        paid=["a", "b"],
        too_late=["c"],
        handled=[
            HandledOrder("c", 1, 2),
            HandledOrder("d", 1, 3),
            HandledOrder("d", 2, 2_003),
        ],
        acked=["c", "d"],
    )
    counts = Counts(Sizes(), Flow(put=4, acked=2, cancelled=2, lapsed=1))
    return records, Audit.of("orders", counts)


def failing(records: DemoRecords, audit: Audit) -> list[str]:
    return [check.claim for check in prove(records, audit, 4) if check.problems]


def test_a_sound_run_is_proved() -> None:
    assert failing(*sound()) == []


UNPAID = "every unpaid order timed out"
PAID = "no order that was paid in time was touched"
COUNTS = "the store counts what the processes counted"
AGAIN = "every second handling is explained by a lapsed lease"

Doctor = Callable[[DemoRecords], object]


@pytest.mark.parametrize(
    ("doctor", "claims"),
    [
        (lambda r: r.handled.pop(0), [UNPAID]),
        (lambda r: r.handled.append(HandledOrder("a", 1, 5)), [PAID]),
        (lambda r: r.handled.append(HandledOrder("z", 1, 5)), [UNPAID]),
        (lambda r: r.handled.append(HandledOrder("c", 1, 5)), [AGAIN]),
        (lambda r: r.handled.append(HandledOrder("c", 2, 5)), [AGAIN]),
        (lambda r: r.handled.pop(), [AGAIN]),
        (lambda r: r.acked.append("c"), [COUNTS]),
        (lambda r: r.paid.remove("b"), [UNPAID, COUNTS]),
        (lambda r: r.put.remove("d"), ["every order was put", UNPAID, COUNTS]),
        (
            lambda r: r.handled.append(r.handled.pop(0)._replace(late=-1)),
            ["none was early"],
        ),
    ],
)
def test_a_doctored_record_is_found_out(doctor: Doctor, claims: list[str]) -> None:
    records, audit = sound()
    doctor(records)
    assert failing(records, audit) == claims


@pytest.mark.parametrize(
    ("flow", "sizes", "claims"),
    [
        (Flow(put=4, acked=3, cancelled=1, lapsed=1), Sizes(), [COUNTS]),
        (Flow(put=4, acked=2, cancelled=2, lapsed=0), Sizes(), [AGAIN]),
        (Flow(put=4, acked=1, cancelled=2, lapsed=1), Sizes(ready=1), [COUNTS]),
        (Flow(put=4, acked=2, cancelled=1, lapsed=1), Sizes(), [COUNTS, "the audit balances"]),
    ],
)
def test_a_store_that_counts_otherwise_is_found_out(
    flow: Flow, sizes: Sizes, claims: list[str]
) -> None:
    records, _ = sound()
    assert failing(records, Audit.of("orders", Counts(sizes, flow))) == claims


def test_a_journal_survives_a_torn_line(tmp_path: Path) -> None:
    lines = '["handled","a",1,5]\n["acked","a"]\n["acked",'
    (tmp_path / "worker-1.jsonl").write_text(lines)
    records = DemoRecords.read(tmp_path)
    assert (records.handled, records.acked) == ([HandledOrder("a", 1, 5)], ["a"])
    assert DemoRecords.read(tmp_path / "nowhere") == DemoRecords()


def test_the_plan_is_the_same_for_everybody() -> None:
    plan = DemoPlan(1_000, 8, 3)
    orders = list(plan.timeline())
    assert orders == list(plan.timeline())
    assert len({order.id for order in orders}) == 1_000
    together = Counter(order.opens for order in orders).most_common(3)
    assert all(count >= 10 for _, count in together)
    paid = sum(order.pays is not None for order in orders)
    assert 700 < paid < 900


def test_percentiles() -> None:
    assert [percentile(list(range(100)), part) for part in (0.5, 0.99, 1)] == [50, 99, 99]
    assert percentile([], 0.5) == 0


@pytest.mark.process
@pytest.mark.parametrize("failing", ["shop", "worker-1"])
def test_a_process_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    code = f"import sys; sys.exit(3 if sys.argv[1] == {failing!r} else bool(sys.stdin.read()))"
    monkeypatch.setattr("bide.cli.demo.stage.ACTOR", (sys.executable, "-c", code))
    with pytest.raises(click.ClickException, match=f"{failing} ended with exit code 3"):
        list(Stage(tmp_path, DemoPlan(50, 600, 2)).run())


@pytest.mark.process
def test_a_process_that_hangs_is_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys, time; sys.exit(3) if sys.argv[1] == 'shop' else time.sleep(20)"
    monkeypatch.setattr("bide.cli.demo.stage.ACTOR", (sys.executable, "-c", code))
    monkeypatch.setattr("bide.cli.demo.stage.GRACE_SECONDS", 0.1)
    stage = Stage(tmp_path, DemoPlan(50, 600, 2))
    with pytest.raises(click.ClickException, match="shop ended"):
        list(stage.run())
    workers = [one for name, one in stage.processes.items() if name != "shop"]
    assert [one.returncode for one in workers] == [-signal.SIGKILL] * 2


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code"), one_in(2, [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
)
def test_an_interrupted_run_leaves_nothing_behind(
    url: str, tmp_path: Path, number: int, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "demo", "--seconds", "60", "--dashboard"],
        env={**os.environ, "TMPDIR": str(tmp_path), "BIDE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    where = process.stdout.readline().split()[-1].decode()
    while b"the shop opens" not in process.stdout.readline():
        assert process.poll() is None
    with urllib.request.urlopen(where, timeout=60) as page:
        assert b"orders" in page.read()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, b"")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(where, timeout=60)


@pytest.mark.process
@pytest.mark.full
def test_the_dashboard_stays_open_after_the_proof(url: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "demo", "--orders", "50", "--seconds", "1", "--dashboard"],
        env={**os.environ, "TMPDIR": str(tmp_path), "BIDE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    while b"the dashboard stays open at " not in (line := process.stdout.readline()):
        assert process.poll() is None
    where = line.split(b" at ")[1].partition(b";")[0].decode()
    with urllib.request.urlopen(where, timeout=60) as page:
        assert b"orders" in page.read()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_short_run_is_proved(shell: Shell, tmp_path: Path) -> None:
    done = shell("bide demo --orders 400 --seconds 1.5 --keep --json", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["proved"]
    assert all(check["holds"] for check in found["checks"])
    assert found["lateness"]["p50"] >= 0
    folder = Path(done.stderr.removeprefix("kept: ").strip())
    assert folder.parent == tmp_path
    records = DemoRecords.read(folder)
    assert len(records.put) == 400
    with bide.Queue(QUEUE, f"sqlite:///{folder / 'demo.db'}") as queue:
        audit = queue.audit()
    assert not any(check.problems for check in prove(records, audit, 400))
    # As often as it was handled: one that was handled again is proved by either.
    forgotten = json.dumps(records.handled[0].id)
    for journal in folder.glob("worker-*.jsonl"):
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text(
            "".join(line for line in lines if "handled" not in line or forgotten not in line)
        )
    assert any(check.problems for check in prove(DemoRecords.read(folder), audit, 400))


@pytest.mark.full
@pytest.mark.process
def test_a_narrow_terminal_has_no_line_that_is_too_long(terminal: Terminal) -> None:
    seen, code = terminal("demo", "--orders", "50", "--seconds", "1", COLUMNS="72")
    assert code == 0, seen
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).splitlines()
    assert any("proved in" in line for line in lines)
    proof = next(place for place, line in enumerate(lines) if line.startswith("ok "))
    assert [line for line in lines[:proof] if len(line) > 72] == []
