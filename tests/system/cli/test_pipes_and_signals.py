"""What only a real process shows: pipes, signals, commands that are run."""

import base64
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import bide
from bide.model.commands import Put
from bide.model.message import Item
from bide.testing.hooks import execute
from tests.effort import one_in
from tests.system.cli.conftest import Bide, Shell
from tests.waiting import until

pytestmark = pytest.mark.process

BOUND = 60.0


def lives(process: int) -> bool:
    """Tell whether a process runs; one that was not waited for yet, or closes its files, may."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_commands_in_a_pipeline(shell: Shell) -> None:
    done = shell(
        "set -eo pipefail\n"
        "seq 1 3000 | bide put orders --lines\n"
        "bide claim orders -n 2000 | bide ack orders - | wc -l\n"
        "bide export orders | bide import copy\n"
        "bide audit | grep -c 'balanced.yes'\n"
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == [
        "stored",
        "3000",
        "refused",
        "0",
        "2000",
        "stored",
        "1000",
        "kept",
        "0",
        "refused",
        "0",
        "2",
    ]


def test_a_reader_who_leaves_early_is_no_error(shell: Shell, orders: bide.Queue) -> None:
    orders.put_many([f"{n} {'x' * 200}" for n in range(3_000)])
    for command in ("bide scan orders", "bide scan orders --json", "bide export orders"):
        done = shell(f"{command} | head -n 1 | wc -l; echo ${{PIPESTATUS[0]}}")
        assert (done.stderr, done.stdout.split()) == ("", ["1", "141"])


def test_an_encoding_without_a_character_gets_an_escape(shell: Shell, orders: bide.Queue) -> None:
    orders.put("é 订单 \U0001f600", id="a")
    latin = {"PYTHONIOENCODING": "latin-1:strict", "PYTHONUTF8": "0"}
    done = shell("bide get orders a | tail -c +1 | iconv -f latin1 -t utf8", **latin)
    assert done.stderr == ""
    assert done.stdout.endswith('\t"é \\u8ba2\\u5355 \\U0001f600"\n')
    done = shell("bide get orders a --json", **latin)
    assert json.loads(done.stdout)["body"] == "é 订单 \U0001f600"


def test_a_body_in_json_stays_as_it_is_in_any_encoding(shell: Shell, orders: bide.Queue) -> None:
    body = '{"total":0.12345678901234567890,"é":1.50,"é":1e3}'
    items = [Item("a", body.encode(), json=True), Item("unreadable", b"1e999", json=True)]
    execute(orders, Put("orders", items))
    for encoding, shown in (("utf-8", body), ("ascii", body.replace("é", "\\u00e9"))):
        done = shell("bide get orders a --json", PYTHONIOENCODING=encoding)
        assert (done.stderr, done.stdout.endswith(f'"body":{shown}}}\n')) == ("", True)
        done = shell("bide get orders unreadable --json", PYTHONIOENCODING=encoding)
        assert json.loads(done.stdout)["bytes"] == base64.b64encode(b"1e999").decode()


def test_times_in_a_pipe_are_in_utc(shell: Shell, orders: bide.Queue) -> None:
    orders.configure(history="1h", keep="1h")
    orders.put(1, id="a", at=4_000_000_000)
    lines = (
        "bide cancel orders a --if-due 4000000001",
        "bide put orders 1 --id a 2>&1 >/dev/null",
        "bide cancel orders a >/dev/null; bide get orders a 2>&1",
    )
    cancelled, kept, gone = (shell(line, TZ="Asia/Shanghai").stdout for line in lines)
    due = "due 2096-10-02T07:06:40.000Z"
    assert cancelled == f"a\tno\tdelayed\tit is delayed, {due}, and no longer as you saw it\n"
    assert kept == f"kept the existing message: a is delayed, {due}\n"
    assert re.match(r"a was cancelled by \S+ at [-0-9]+ [:0-9]+ UTC, ", gone)


def test_a_closed_output_is_told_before_anything_is_done(shell: Shell, orders: bide.Queue) -> None:
    orders.put(1)
    done = shell("bide claim orders --ack >&-")
    assert done.stderr == "error: standard output is closed; redirect it, as in >/dev/null\n"
    assert done.returncode == 3
    assert orders.counts().sizes.ready == 1


@pytest.mark.parametrize(
    "command",
    one_in(
        4,
        [
            "audit",
            "import orders x.jsonl",
            "move sqlite:///bide.db sqlite:///new.db",
            "revive orders --all",
            "export orders",
            "purge orders --state dead",
            "put orders --lines --file lines",
            "counts orders",
            "get orders nobody",
            "cancel orders nobody",
            "get orders a",
        ],
    ),
)
def test_a_closed_stderr_changes_nothing(
    run: Bide, shell: Shell, tmp_path: Path, command: str
) -> None:
    """As under cron and in daemons. An export was empty, an audit did not balance."""
    run("put", "orders", "1", "--id", "a")
    exported = run("export", "orders").stdout
    results = []
    for closing in ("2>&-", "2>/dev/null"):
        (folder := tmp_path / closing[-1]).mkdir()
        shutil.copy(tmp_path / "test.db", folder / "bide.db")
        (folder / "x.jsonl").write_text(exported)
        (folder / "lines").write_text('"b"\n')
        done = shell(f"cd {folder}; bide {command} {closing}", BIDE_URL="sqlite:///bide.db")
        # Ids that bide makes and times differ.
        results.append(
            (done.returncode, re.sub(r"in [0-9hms]+|[-0-9T:.]{8,}Z|[0-9]{3,}", "", done.stdout))
        )
    assert results[0] == results[1]


def test_a_key_is_not_made_for_a_closed_output(shell: Shell) -> None:
    done = shell("bide subscription new-key >&-")
    assert done.stderr == "error: standard output is closed; redirect it, as in >/dev/null\n"
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("put orders - --text", "1"),
        ("put orders --lines", "2"),
        ("import orders", "3"),
        ("ack orders -", "0"),
    ],
)
def test_a_closed_input_is_empty(
    shell: Shell, orders: bide.Queue, command: str, output: str
) -> None:
    orders.put(1)
    done = shell(f"bide {command} <&- | wc -l")
    assert (done.stderr, done.stdout.split()) == ("", [output])


def test_what_could_not_be_printed_is_not_acked(shell: Shell, orders: bide.Queue) -> None:
    orders.put_many(range(5))
    done = shell("bide claim orders -n 5 --ack > /dev/full; echo $?")
    assert done.stdout == "3\n"
    assert "No space left" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert orders.counts().flow.acked == 0


def test_lines_are_put_as_they_trickle_in(orders: bide.Queue, url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "put", "orders", "--lines", "--url", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    for number in (1, 2):
        process.stdin.write(b"1\n")
        process.stdin.flush()
        until(lambda number=number: orders.counts().flow.put == number)  # type: ignore[misc]
    assert process.communicate(timeout=BOUND)[0] == b"stored\t2\nrefused\t0\n"


def test_an_interrupt_says_which_lines_were_put(orders: bide.Queue, url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "put", "orders", "--lines", "--url", url],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    for number in (1, 2):
        print(number, file=process.stdin, flush=True)
        until(lambda number=number: orders.counts().flow.put == number)  # type: ignore[misc]
    process.send_signal(signal.SIGINT)
    assert re.fullmatch("the lines up to line [12] were put\n", process.communicate()[1])
    assert process.returncode == 130


def test_an_interrupt_is_quiet(orders: bide.Queue, url: str) -> None:
    orders.put(1, id="a", delay=3600)
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "claim", "orders", "--wait", "1h"],
        env={**os.environ, "BIDE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    notifier = Path(f"{url.removeprefix('sqlite:///')}-bell")
    until(lambda: notifier.exists() and any(notifier.iterdir()))  # it waits
    for _ in range(5):
        # CPython can miss a signal in the instant in which a thread goes to sleep on a lock; who
        # presses Ctrl-C without effect presses it again.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(BOUND / 5)
        except subprocess.TimeoutExpired:
            continue
        break
    assert process.communicate(timeout=BOUND) == (b"", b"")
    assert process.returncode == 130


def test_exec_acks_by_the_exit_code(shell: Shell, orders: bide.Queue) -> None:
    orders.put({"n": 1}, id="good", priority=1)
    orders.put("text", id="bad")
    about = 'cat; echo " $BIDE_QUEUE $BIDE_ID $BIDE_ATTEMPT"; [ "$BIDE_ID" = good ] || exit 7'
    done = shell(f"bide claim orders -n 5 --exec '{about}' --retry 1h")
    assert done.returncode == 1
    assert done.stdout == '{"n":1} orders good 1\ntext orders bad 1\n'
    assert done.stderr == "bad of orders, attempt 1: failed, again in 1h: exit code 7\n"
    bad = orders.get("bad")
    assert bad is not None
    assert (bad.state, bad.error) == ("delayed", "exit code 7")
    assert orders.counts().flow.acked == 1


def test_exec_as_json_and_with_nothing_to_do(shell: Shell, orders: bide.Queue) -> None:
    orders.put(1, id="a", attempts=1, delay=3600)
    assert shell("bide claim orders --exec true").returncode == 1
    orders.reschedule("a", delay=0)
    done = shell("bide claim orders --exec 'kill -9 $$' --json")
    found = json.loads(done.stdout)
    assert (found["id"], found["exit"], found["outcome"]) == ("a", -9, "dead")
    assert [message.error for message in orders.dead()] == ["killed by signal 9"]


def test_the_lease_is_extended_while_a_command_runs(
    shell: Shell, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put(1, id="a")
    script = tmp_path / "outlast.py"
    script.write_text(
        "import bide, os, time\n"
        "with bide.Queue(os.environ['BIDE_QUEUE'], os.environ['BIDE_URL']) as queue:\n"
        "    first = queue.get(os.environ['BIDE_ID']).until\n"
        f"    deadline = time.monotonic() + {BOUND / 2}\n"
        "    while queue.get(os.environ['BIDE_ID']).until < first + 600:\n"
        "        assert time.monotonic() < deadline\n"
    )
    command = f"{sys.executable} {script}"
    done = shell(f"bide claim orders --exec '{command}' --lease 3s")
    assert (done.stderr, done.returncode) == ("", 0)
    flow = orders.counts().flow
    assert (flow.acked, flow.lapsed) == (1, 0)


def test_a_store_that_is_busy_for_a_while_stops_no_exec(
    orders: bide.Queue, url: str, tmp_path: Path
) -> None:
    orders.put(1, id="a")
    begun, go, told = tmp_path / "begun", tmp_path / "go", tmp_path / "told"
    script = tmp_path / "wait.sh"
    script.write_text(f"touch {begun}; until [ -e {go} ]; do sleep 0.02; done")
    with told.open("wb") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bide",
                "claim",
                "orders",
                "--exec",
                f"sh {script}",
                "--lease",
                "6s",
                "--url",
                f"{url}?timeout=50ms",
            ],
            stderr=stderr,
        )
    until(begun.exists)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    until(lambda: "the store is away; waiting for it: another" in told.read_text())
    other.execute("ROLLBACK")
    other.close()
    go.touch()
    assert process.wait(BOUND) == 0
    assert [line[:14] for line in told.read_text().splitlines()] == [
        "the store is a",
        "the store is b",
    ]
    assert orders.counts().flow.acked == 1


@pytest.mark.parametrize(
    ("number", "code"),
    one_in(3, [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]),
)
def test_an_interrupted_exec_ends_and_hands_its_message_back(
    orders: bide.Queue, url: str, tmp_path: Path, number: int, code: int
) -> None:
    orders.put(1, id="a")
    mark = tmp_path / "runs"
    # The shell waits for what it has started; that ends a little after it was told to.
    script = tmp_path / "child.sh"
    script.write_text(f"trap 'sleep 0.2; exit' TERM; echo $$ > {mark}; sleep 60 & wait")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bide",
            "claim",
            "orders",
            "--loop",
            "--exec",
            f"sh {script}; echo finished",
        ],
        env={**os.environ, "BIDE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has it ignored
    )
    until(lambda: mark.exists() and mark.read_text().endswith("\n"))
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=BOUND)  # nobody holds the pipes any more
    assert stdout == b""
    assert b"error" not in stderr  # a shell may say that it was told to end
    assert process.returncode == code
    until(lambda: not lives(int(mark.read_text())))
    message = orders.get("a")
    assert message is not None
    assert (message.state, message.attempt) == ("ready", 0)


def test_an_exec_that_does_not_heed_is_killed_at_a_second_interrupt(
    orders: bide.Queue, url: str, tmp_path: Path
) -> None:
    orders.put(1, id="a")
    mark, told = tmp_path / "runs", tmp_path / "told"
    script = tmp_path / "stubborn.sh"
    script.write_text(f"trap 'touch {told}' TERM; touch {mark}; while :; do sleep 0.05; done")
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "claim", "orders", "--exec", f"sh {script}"],
        env={**os.environ, "BIDE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(mark.exists)
    process.send_signal(signal.SIGINT)
    until(told.exists)
    process.send_signal(signal.SIGINT)
    assert b"Traceback" not in process.communicate(timeout=BOUND)[1]
    assert process.returncode == 130
    message = orders.get("a")
    assert message is not None
    assert message.state == "ready"


def test_an_exec_in_a_loop_goes_on_after_a_message_that_died(
    orders: bide.Queue, url: str, tmp_path: Path
) -> None:
    orders.put(1, id="a", attempts=1)
    assert orders.claim(lease=0.2)
    mark = tmp_path / "runs"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bide",
            "claim",
            "orders",
            "--loop",
            "--exec",
            f"echo $BIDE_ID > {mark}",
        ],
        env={**os.environ, "BIDE_URL": url},
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert b"a of orders, attempt 1: it is dead now" in process.stderr.readline()
    orders.put(2, id="b")
    until(lambda: process.poll() is not None or mark.exists())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=BOUND)
    assert process.returncode == 143
    assert mark.read_text() == "b\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full")
@pytest.mark.parametrize(
    "command",
    [
        "bide --help",
        "bide",
        "bide put --help",
        "bide --version",
        "bide put orders 1",
        "bide cancel orders none",
        "bide subscription new-key",
    ],
)
def test_output_that_cannot_be_written_is_an_error_in_one_line(
    shell: Shell, orders: bide.Queue, command: str
) -> None:
    orders.put(1)
    done = shell(f"{command} > /dev/full")
    assert done.stderr == "error: No space left on device\n"
    assert done.returncode == 3
