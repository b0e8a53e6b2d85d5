"""`bide check-deploy`."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import bide
from bide.lane.shared import close_lane, open_lane
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.settings import Settings
from tests.system.server.conftest import running

Bide = Callable[..., Result]
Terminal = Callable[..., tuple[str, int]]

NEW = """
import bide, pydantic

app = bide.App()

@app.task(queue="orders")
def expire(order: int, reason: str = "unpaid") -> None: ...

@app.task(queue="orders")
def charge(order: int, currency: str, region: str) -> None: ...

@app.task(name="remind", queue="reminders")
def remind_soon(user: int) -> None: ...

@app.job("meetings")
class Remind(bide.Job):
    meeting: int
    room: str
    def run(self): ...

class Mail(pydantic.BaseModel):
    to: str
    copies: int = pydantic.Field(gt=0)

@app.handler("mails")
def send(mail: Mail) -> None: ...

@app.schedule("sweeps", every="1h")
def sweep() -> None: ...
"""


@pytest.fixture(autouse=True)
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Provide the name of the app above."""
    (tmp_path / "new_shop.py").write_text(NEW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the folder
    yield "new_shop:app"
    sys.modules.pop("new_shop", None)


def call(task: str, **args: Any) -> dict[str, Any]:
    """Return the body of a call."""
    return {"task": task, "args": args}


def put(url: str, queue: str, *bodies: Any, **options: Any) -> None:
    with bide.Queue(queue, url) as opened:
        for number, body in enumerate(bodies):
            opened.put(body, id=f"{queue}-{number}", **options)


def refusals(result: Result) -> list[tuple[str, str, str, int, str]]:
    """Return queue, name, kind, number of messages, and the first id of each refusal."""
    return [
        (
            refusal["queue"],
            refusal["name"],
            refusal["kind"],
            refusal["messages"],
            *refusal["ids"][:1],
        )
        for refusal in json.loads(result.stdout)["refusals"]
    ]


def test_ten_thousand_messages_that_fit(run: Bide, target: str, url: str) -> None:
    with bide.Queue("orders", url) as orders:
        orders.put_many([call("expire", order=number) for number in range(6_000)], delay="1d")
        orders.put_many([call("expire", order=number) for number in range(4_000)])
        orders.claim(100, lease="1h")
        before = sorted(orders.export())
        result = run("check-deploy", target)
        assert (result.stdout, result.exit_code) == ("", 0)
        assert result.stderr == "all 10,000 pending messages fit new_shop:app\n"
        facts = json.loads(run("check-deploy", target, "--json").stdout)
        assert facts == {
            "fits": True,
            "pending": 10_000,
            "refused": 0,
            "refusals": [],
            "unhandled": {},
        }
        assert sorted(orders.export()) == before


def test_ten_thousand_of_which_some_do_not_fit(run: Bide, target: str, url: str) -> None:
    with bide.Queue("orders", url) as orders:
        orders.put_many([call("expire", order=number) for number in range(9_988)], delay="1d")
        orders.put_many([call("expire", order=f"o-{number}") for number in range(7)])
        orders.put_many([call("charge", order=number) for number in range(5)], delay="2d")
        orders.claim(3, lease="1h")
    result = run("check-deploy", target)
    assert result.exit_code == 1
    assert result.stderr == "new_shop:app would refuse 12 of 10,000 pending messages\n"
    first, second = (line.split("\t") for line in result.stdout.splitlines())
    assert first[:5] == [
        "orders",
        "expire",
        "argument",
        "7",
        "order= of new_shop.expire does not fit: Expected `int`, got `str`",
    ]
    assert len(first[5].split(",")) == 3
    assert first[6] == (
        "annotate it with both types, the former and the new, until these messages are gone"
    )
    assert second[:4] == ["orders", "charge", "missing argument", "5"]
    assert second[4].endswith("needs currency, region, which the arguments lack")
    assert second[6] == "give the new parameters defaults until these messages are gone"


@pytest.mark.parametrize(
    ("queue", "body", "options", "refusal", "words"),
    [
        (
            "orders",
            call("expire", order=1, why="x"),
            {},
            ("expire", "unknown argument"),
            ("has no parameter why", "keep the parameters, with defaults, until"),
        ),
        (
            "orders",
            call("refund", order=1),
            {},
            ("refund", "no task"),
            (
                "the app has no task 'refund' in this queue",
                "@app.task(name='refund', queue='orders')",
            ),
        ),
        (
            "remind_soon",
            call("remind", user=1),
            {},
            ("remind", "no task"),
            ("in this queue; it has one in reminders", "queue='remind_soon')"),
        ),
        (
            "former",
            call("former"),
            {},
            ("former", "no task"),
            ("the app has no task 'former' in this queue", "until these messages are gone"),
        ),
        (
            "orders",
            {"order": 1},
            {},
            ("", "body"),
            ("neither task nor job; the app has charge, expire", "another queue"),
        ),
        (
            "reminders",
            {"user": 1},
            {},
            ("new_shop.remind_soon", "body"),
            ("the body calls no task", "let the queue keep its former handler"),
        ),
        (
            "meetings",
            {"meeting": 1},
            {"headers": {"bide-job": "Remind"}},
            ("Remind", "body"),
            ("Remind: Object missing required field `room`", "give new fields defaults"),
        ),
        (
            "meetings",
            {"meeting": 1},
            {"headers": {"bide-job": "Forget"}},
            ("Forget", "no job"),
            ("the app has no job 'Forget' in this queue", "@app.job('meetings', 'Forget')"),
        ),
        (
            "elsewhere",
            {"meeting": 1},
            {"headers": {"bide-job": "Remind"}},
            ("Remind", "no job"),
            ("the app has no job 'Remind' in this queue; it has one in meetings", "@app.job("),
        ),
        (
            "mails",
            {"to": "ann", "copies": -5},
            {},
            ("new_shop.send", "body"),
            (
                "the body does not fit Mail: copies: Input should be greater than 0",
                "let the type take",
            ),
        ),
        (
            "mails",
            b"\x00",
            {},
            ("new_shop.send", "body"),
            ("the body is bytes, and the handler takes Mail", "let the type take"),
        ),
    ],
)
def test_what_the_new_code_would_refuse(
    run: Bide,
    target: str,
    url: str,
    queue: str,
    body: Any,
    options: dict[str, Any],
    refusal: tuple[str, str],
    words: tuple[str, str],
) -> None:
    put(url, queue, body, body, **options)
    result = run("check-deploy", target, "--json")
    assert result.exit_code == 1
    name, kind = refusal
    assert refusals(result) == [(queue, name, kind, 2, f"{queue}-0")]
    (facts,) = json.loads(result.stdout)["refusals"]
    assert words[0] in facts["reason"]
    assert words[1] in facts["fix"]
    assert facts["ids"] == [f"{queue}-0", f"{queue}-1"]


def test_what_is_not_pending_is_left_out(run: Bide, target: str, url: str) -> None:
    with bide.Queue("orders", url) as orders:
        orders.configure(keep="1d")
        orders.put_many([call("gone") for _ in range(3)])
        dead, acked, _ = orders.claim(3)
        dead.bury()
        acked.ack()
    result = run("check-deploy", target)
    assert result.stderr == "new_shop:app would refuse 1 of 1 pending message\n"
    assert result.stdout.split("\t")[:4] == ["orders", "gone", "no task", "1"]


def test_what_follows_a_message_that_a_worker_holds(run: Bide, target: str, url: str) -> None:
    """A put with `latest` waits behind it."""
    later: dict[str, Any] = {"delay": "1h", "latest": "2h", "on_conflict": "replace"}
    put(url, "orders", call("expire", order=1))
    with bide.Queue("orders", url) as orders:
        orders.claim()
        orders.put(call("expire", order="x"), id="orders-0", **later)
    result = run("check-deploy", target, "--json")
    assert refusals(result) == [("orders", "expire", "argument", 1, "orders-0")]
    assert json.loads(result.stdout)["pending"] == 2


def test_messages_of_others_are_named_and_do_not_fail(
    run: Bide, target: str, url: str, terminal: Terminal
) -> None:
    put(url, "orders", call("expire", order=1))
    put(url, "chores", {"task": "clean"}, {"task": "wash", "args": [1]}, {"task": 1, "args": {}})
    put(url, "todo", {"task": "clean", "args": {}, "by": "ann"}, b"x", 5)
    result = run("check-deploy", target)
    assert (result.stdout, result.exit_code) == ("", 0)
    assert result.stderr.splitlines() == [
        "the pending message fits new_shop:app",
        "not checked, new_shop:app has no handler for them: 6 messages in chores, todo",
    ]
    facts = json.loads(run("check-deploy", target, "--json").stdout)
    assert (facts["pending"], facts["unhandled"]) == (1, {"chores": 3, "todo": 3})


def test_queues_of_other_apps_can_be_left_out(run: Bide, target: str, url: str) -> None:
    for queue in ("other-a", "other-b", "third"):
        put(url, queue, call("theirs"))
    put(url, "orders", call("expire", order=1))
    assert len(refusals(run("check-deploy", target, "--json"))) == 3
    result = run("check-deploy", target, "--skip", "other-*", "--json")
    assert [refusal[0] for refusal in refusals(result)] == ["third"]
    result = run("check-deploy", target, "--skip", "other-?", "--skip", "third", "--skip", "x*")
    assert result.exit_code == 0
    assert re.match(
        r"--skip x\* names no queue in sqlite:///.*\nthe pending message fits ", result.stderr
    )


def test_reasons_with_values_in_them_are_grouped(run: Bide, target: str, url: str) -> None:
    put(url, "mails", *[{"to": "ann", "copies": -number} for number in range(50)])
    assert refusals(run("check-deploy", target, "--json")) == [
        ("mails", "new_shop.send", "body", 50, "mails-0")
    ]
    put(url, "orders", *[call("expire", **{f"argument{n}": n}, order=n) for n in range(50)])
    found = refusals(run("check-deploy", target, "--json", "--skip", "mails"))
    assert len(found) == 21
    assert found[0][3] == 30
    facts = json.loads(run("check-deploy", target, "--json", "--skip", "mails").stdout)
    assert facts["refusals"][0]["reason"] == "other reasons"
    assert facts["refused"] == 50


@pytest.mark.full
def test_on_a_terminal(run: Bide, target: str, url: str, terminal: Terminal) -> None:
    put(url, "orders", *[call("expire", order=n) for n in range(4)])
    seen, code = terminal("check-deploy", target)
    assert (code, "✓ all 4 pending messages fit new_shop:app" in plain(seen)) == (0, True)
    put(url, "gone", *[call("gone") for _ in range(5)])
    seen, code = terminal("check-deploy", target)
    assert code == 1
    assert [line.rstrip() for line in plain(seen).splitlines()] == [
        "✗ gone: 5 messages, no task",
        "  the app has no task 'gone' in this queue",
        "  ids: gone-0, gone-1, gone-2, ...",
        "  fix: keep it until these messages are gone; if you renamed or moved it: "
        "@app.task(name='gone', queue='gone')",
        "✗ new_shop:app would refuse 5 of 9 pending messages",
    ]


def plain(seen: str) -> str:
    """Return what is on a terminal, without colors and the movements of the cursor."""
    return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]|\r", "", seen)


def test_nothing_is_pending(run: Bide, target: str, url: str) -> None:
    assert run("init").exit_code == 0
    result = run("check-deploy", target)
    assert (result.stderr, result.exit_code) == ("no message is pending for new_shop:app\n", 0)


def test_without_a_store_nothing_is_known(run: Bide, target: str, tmp_path: Path) -> None:
    result = run("check-deploy", target)
    assert (result.stdout, result.exit_code) == ("", 3)
    assert "yet; name the store of the running app with --url" in result.stderr
    assert not (tmp_path / "test.db").exists()


# Other stores.


def check_on(url: str, run: Bide, target: str) -> None:
    """Check a few messages of each kind in a store."""
    put(url, "orders", call("expire", order=1), call("expire", order="x"), call("charge"))
    put(url, "reminders", call("remind", user=1), delay="1h")
    put(url, "renamed", call("renamed"), delay="1h")
    with bide.Queue("orders", url) as orders:
        orders.claim(2, lease="1h")
    result = run("check-deploy", target, "--json", "--url", url)
    assert result.exit_code == 1, result.output
    assert sorted(refusals(result)) == [
        ("orders", "charge", "missing argument", 1, "orders-2"),
        ("orders", "expire", "argument", 1, "orders-1"),
        ("renamed", "renamed", "no task", 1, "renamed-0"),
    ]
    assert json.loads(result.stdout)["pending"] == 5
    with bide.Queue("orders", url) as orders:
        assert orders.counts().sizes.leased == 2


@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_on_servers(run: Bide, target: str, request: pytest.FixtureRequest, store: str) -> None:
    check_on(request.getfixturevalue(f"{store}_url")(), run, target)


def test_over_http(run: Bide, target: str, url: str) -> None:
    with running(ServerApp(Settings(store=url))) as port:
        check_on(f"http://127.0.0.1:{port}", run, target)


def test_a_token_that_may_not_read_bodies(run: Bide, target: str, url: str) -> None:
    lane = open_lane(url)
    tokens = Tokens(lane)
    rights = (["put", "consume", "read", "bodies"], ["put", "read"])
    whole, blind = (tokens.create("shop", list(names))[0] for names in rights)
    with running(ServerApp(Settings(store=url))) as port:
        check_on(f"http://:{whole}@127.0.0.1:{port}", run, target)
        result = run("check-deploy", target, "--url", f"http://:{blind}@127.0.0.1:{port}")
        assert (result.stdout, result.exit_code) == ("", 3)
        assert "the token has no right 'bodies'" in result.stderr
    close_lane(lane)
