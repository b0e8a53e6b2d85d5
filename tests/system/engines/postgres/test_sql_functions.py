"""The functions for people, triggers and other languages, and the bodies that they put."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import bide
from bide.engines.postgres import PostgresEngine
from bide.model import commands as cmd
from bide.model.body import check_json
from bide.model.errors import InvalidArgument, UnreadableBody
from bide.model.message import Item
from bide.model.replies import Found
from tests.postgres_server import PostgresServer

Row = tuple[Any, ...]
Ask = Callable[..., Row]


@pytest.fixture
def ask(postgres: PostgresServer, engine: PostgresEngine) -> Iterator[Ask]:
    """Provide a call of a function by its text, which answers the columns of the first row."""
    with postgres.client() as client:

        def ask(call: str, *values: object) -> Row:
            rows = client.execute(f"SELECT * FROM {engine.schema}.{call}".encode(), values)
            return rows.fetchone() or ()

        ask("put('there', '1', priority => 1)")
        yield ask


@pytest.mark.parametrize(
    "value",
    [
        "priority => 0",
        "priority => 255",
        "attempts => 1",
        "attempts => 10000",
        "expires => '0'",
        "expires => '47482 days'",
        "id => repeat('x', 512)",
        "\"group\" => 'g'",
        "\"group\" => repeat('ü', 256)",
        'headers => \'{"a": "b"}\'',
        "at => '1970-01-01Z'",
        "at => '2100-01-01Z'",
        "on_conflict => 'replace', delay => '1m', latest => '130 years', id => 'a'",
    ],
)
def test_the_least_and_the_most_are_put(ask: Ask, value: str) -> None:
    assert ask(f"put('q', '1', {value})")[1] is True


@pytest.mark.parametrize(
    "value",
    [
        "priority => -1",
        "priority => 256",
        "attempts => 0",
        "attempts => 10001",
        "expires => '-1 ms'",
        "expires => '130 years'",  # of 365.25 days: more than Python takes
        "expires => '47482 days 1 ms'",
        "expires => '-1 year 361 days'",  # PostgreSQL thinks that it is more than 0
        "on_conflict => 'what'",
    ],
)
def test_what_is_less_or_more_is_refused(ask: Ask, value: str) -> None:
    told = (
        "priority is 0 to 255, attempts 1 to 10000, expires 0 to 47482 days, "
        "on_conflict keep or replace, and the body has at most 1048576 bytes"
    )
    for queue in ("none", "there"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=told):
            ask(f"put('{queue}', '1', {value})")


@pytest.mark.parametrize("replacing", ["", ", on_conflict => 'replace'"])
def test_a_body_has_at_most_a_mebibyte(ask: Ask, replacing: str) -> None:
    put = f"put('q', to_json(repeat('x', %s)){replacing})"
    assert ask(put, 1048574)[1] is True  # with its quotes
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="at most 1048576 bytes"):
        ask(put, 1048575)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("id => ''", "id must have 1 to 512 bytes"),
        ("id => repeat('ü', 256) || 'x'", "id must have 1 to 512 bytes"),
        ("id => E'a\\nb'", "id must have 1 to 512 bytes and no control characters"),
        ("\"group\" => ''", "group must have 1 to 512 bytes"),
        ("headers => '[]'", "headers must be a JSON object of texts"),
        ("headers => '{\"a\": 1}'", "headers must be a JSON object of texts"),
        ("at => '1969-12-31Z'", "before 1970 or after 2099"),
        ("at => '2100-01-02Z'", "before 1970 or after 2099"),
        ("delay => '1m', at => '2030-01-01Z'", "delay or at, not both"),
    ],
)
def test_a_wrong_argument_is_named(ask: Ask, value: str, told: str) -> None:
    for queue in ("none", "there"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=told):
            ask(f"put('{queue}', '1', {value})")


@pytest.mark.parametrize("replacing", ["", ", on_conflict => 'replace'"])
@pytest.mark.parametrize(
    ("field", "value", "stored", "default"),
    [
        ("priority", "3", 3, 0),
        ("attempts", "4", 4, 10),
        ("expires", "'1h'", 3_600_000, None),
        ("group", "'g'", "g", None),
        ("headers", '\'{"h": "x"}\'', {"h": "x"}, None),
        ("at", "'2030-01-01Z'", None, None),
    ],
)
def test_each_field_alone_is_stored_and_null_is_the_default(
    engine: PostgresEngine,
    ask: Ask,
    field: str,
    value: str,
    stored: Any,
    default: Any,
    replacing: str,
) -> None:
    for id, told in (("new", value), ("there", value), ("null", "NULL")):  # first into no queue
        ask(f"""put('q', '1', id => '{id}', "{field}" => {told}{replacing})""")
    (found,) = engine.execute([cmd.Find("q", ["new", "there", "null"])])
    assert isinstance(found, Found)
    messages = [message for message in found.messages if message is not None]
    if field == "at":
        assert [message.due for message in messages[:2]] == [1_893_456_000_000] * 2
        assert messages[2].due < 1_893_456_000_000
    else:
        assert [getattr(message, field) for message in messages] == [stored, stored, default]


def test_there_is_a_body(ask: Ask) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="body is null"):
        ask("put('q', NULL)")
    assert ask("put('q', 'null')")[1] is True


@pytest.mark.parametrize("queue", ["q", "9", "7up", "shop/orders", "9/9", "5a/z." + "x" * 126])
def test_a_queue_has_any_name_that_is_right(ask: Ask, queue: str) -> None:
    assert ask("put(%s, '1', id => 'a')", queue)[:2] == ("a", True)
    assert ask("get(%s, 'a')", queue)[0] == "ready"


def test_a_message_is_looked_at_while_it_waits_and_while_it_is_held(
    engine: PostgresEngine, ask: Ask
) -> None:
    columns = 'state, due, priority, attempt, attempts, "group", holder, until, bytes, body'
    at = "2020-01-01Z"
    ask("put('q', '[1]', at => %s, id => 'a', priority => 3, attempts => 4, \"group\" => 'g')", at)
    got = f"get('q', 'a') AS m CROSS JOIN LATERAL (SELECT {columns}) AS c"
    due = datetime(2020, 1, 1, tzinfo=UTC)
    assert ask(got)[-10:] == ("ready", due, 3, 0, 4, "g", None, None, None, [1])
    engine.execute([cmd.Claim("q", 1, 3_600_000, "w")])
    held = ask(got)[-10:]
    assert held[:7] == ("leased", due, 3, 1, 4, "g", "w")
    left = held[7] - datetime.now(UTC)
    assert timedelta(minutes=59) < left < timedelta(minutes=61)
    engine.execute([cmd.Put("q", [Item("b", b"\0", json=False, delay=60_000)])])
    later = ask(got.replace("'a'", "'b'"))[-10:]
    assert (later[0], *later[-3:]) == ("delayed", None, b"\0", None)
    assert ask("get('q', 'c')") == ()


def test_when_a_message_was_first_put_is_null_where_that_is_unknown(
    engine: PostgresEngine, ask: Ask
) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", created=0), Item("b", b"1", created=1_000)])])
    created = "get('q', %s) CROSS JOIN LATERAL (SELECT created) AS c"
    assert ask(created, "a")[-1] is None
    assert ask(created, "b")[-1] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_a_put_is_kept_or_replaced_and_the_answer_tells_what_is_there(ask: Ask) -> None:
    first = ask("put('q', '1', delay => '1h', id => 'a')")
    assert ask("put('q', '2', delay => '2h', id => 'a')") == ("a", False, *first[2:])
    assert ask("put('q', '2', priority => 1, id => 'a')") == ("a", False, *first[2:])
    assert ask("put('q', '3', id => 'a', on_conflict => 'replace')")[1:3] == (True, "ready")
    assert ask("get('q', 'a')")[2] == 3


def test_what_is_put_without_a_delay_is_ready_at_once(ask: Ask) -> None:
    assert {ask("put('q', '1')")[2] for _ in range(200)} == {"ready"}


def test_a_cancel_and_a_reschedule_tell_what_became_of_the_message(ask: Ask) -> None:
    for verb in ("cancel('q', 'a')", "reschedule('q', 'a', delay => '1h')"):
        assert ask(verb) == ("a", False, None, None)
    ask("put('q', '1', id => 'a')")
    moved = ask("reschedule('q', 'a', at => '2040-01-01Z')")
    assert moved == ("a", True, "delayed", datetime(2040, 1, 1, tzinfo=UTC))
    assert ask("cancel('q', 'a')")[:2] == ("a", True)
    assert ask("get('q', 'a')") == ()


def test_a_cancel_stops_what_runs_if_it_says_so(engine: PostgresEngine, ask: Ask) -> None:
    assert ask("cancel('q', 'a', running => true)") == ("a", False, None, None)
    ask("put('q', '1', id => 'a')")
    assert ask("cancel('q', 'a', running => true)")[:2] == ("a", True)
    ask("put('q', '1', id => 'a')")
    engine.execute([cmd.Claim("q", 1, 3_600_000, "w")])
    assert ask("cancel('q', 'a')")[:3] == ("a", False, "leased")
    assert ask("cancel('q', 'a', running => false)")[:3] == ("a", False, "leased")
    assert ask("cancel('q', 'a', running => true)")[:3] == ("a", False, "stopping")
    (found,) = engine.execute([cmd.Find("q", ["a"])])
    assert isinstance(found, Found)
    (message,) = found.messages
    assert message is not None
    assert message.stopping == "bide"


def test_who_waits_hears_what_is_due_soon_and_nothing_else(
    postgres: PostgresServer, engine: PostgresEngine, ask: Ask
) -> None:
    asleep = "INSERT INTO {}.sleeper VALUES ('p', 'q', 9007199254740992, 9007199254740992)"
    ask("put('q', '1', id => 'held')")
    engine.execute([cmd.Claim("q", 1, 3_600_000, "w")])
    heard: list[str] = []
    with postgres.client() as client:
        client.add_notify_handler(lambda told: heard.append(told.payload.partition(" ")[2]))
        client.execute(asleep.format(engine.schema).encode())
        key = "left(md5(key || 'q'), 16)"
        names = f"SELECT channel, {key} FROM {engine.schema}.store, {engine.schema}.secret"
        ((channel, tag),) = client.execute(names.encode()).fetchall()
        client.execute(f"LISTEN {channel}".encode())

        def wakes(call: str) -> bool:
            heard.clear()
            client.execute(f"SELECT {engine.schema}.{call}".encode())
            return heard == [tag]

        latest = "on_conflict => 'replace', latest => '1h'"
        assert wakes("put('q', '1')")
        assert wakes("put('q', '1', id => 'a', delay => '3s')")
        assert not wakes("put('q', '1', id => 'b', delay => '1h')")
        assert not wakes("put('q', '1', id => 'a')")
        assert wakes("put('q', '1', id => 'a', on_conflict => 'replace')")
        assert not wakes("put('q', '1', id => 'held', on_conflict => 'replace')")
        assert not wakes(f"put('q', '1', id => 'held', delay => '1s', {latest})")
        assert wakes("reschedule('q', 'b', delay => '1s')")
        assert not wakes("reschedule('q', 'held', delay => '1s')")
        assert not wakes("put('other', '1')")


def test_a_role_that_is_allowed_again_has_the_new_queues_and_others_keep_theirs(
    postgres: PostgresServer, engine: PostgresEngine, ask: Ask
) -> None:
    with postgres.client() as client:
        client.execute("CREATE ROLE web; CREATE ROLE mail")
        try:
            ask("allow('web', '{orders}')")
            ask("allow('mail')")
            ask("allow('web', '{orders,carts%%}')")
            client.execute(f"SET search_path = {engine.schema}".encode())
            of_both = "SELECT role, queues FROM access WHERE role IN ('web', 'mail') ORDER BY role"
            rows = client.execute(of_both).fetchall()
            assert rows == [("mail", ["%"]), ("web", ["orders", "carts%"])]
        finally:
            client.execute(
                f"DELETE FROM {engine.schema}.access WHERE role IN ('web', 'mail');"
                " DROP OWNED BY web, mail; DROP ROLE web, mail".encode()
            )


BAD = [
    r'"\ud83d"',
    r'"\udc00"',
    r'"\ud83d\ud83d"',
    r'["\\\ud83d", 1]',
    r'{"\uDBFF": 1}',
    "1e400",
    "[1, -1.5E+309]",
    "1" * 400 + ".5",
    "9" * 290 + "e50",
    "1" * 4301,
    "[" * 501 + "]" * 501,
    '{"a":' * 501 + "1" + "}" * 501,
]
GOOD = [
    r'"\ud83d\ude00"',
    r'"\\ud83d"',
    r'"\u0000"',
    r'"\\\\\ud83d\ude00"',
    "1e308",
    "1e-400",
    "1" * 300,
    "9" * 310 + "e-5",
    '"1e400"',
    r'"\"1e400"',
    "[" * 500 + "]" * 500,
    "[" + "[]," * 2000 + "[]]",
    json.dumps("[" * 2000),
    '{"a{": "}[\\"["}',
    "0.0001e311",
]


@pytest.fixture(params=["on", "off"])
def put(
    request: pytest.FixtureRequest, postgres: PostgresServer, postgres_url: Callable[[], str]
) -> Iterator[Any]:
    """Put a body by SQL, whatever a backslash means to the user; also past its check."""
    url = postgres_url()
    schema = url.rpartition("&schema=")[2]
    with bide.Queue("q", url) as queue, postgres.client() as client:
        queue.counts()  # this makes the schema
        client.execute(f"SET standard_conforming_strings = {request.param}".encode())

        def put_by_sql(text: str, *, checked: bool = True) -> None:
            if checked:
                client.execute(f"SELECT {schema}.put('q', %s::json)".encode(), (text,))
                return
            fields = "'q', NULL, 'a', true, %s, NULL, 0, 0, 10, NULL, NULL, NULL"
            client.execute(f"SELECT {schema}._put_one({fields})".encode(), (text.encode(),))

        put_by_sql.queue = queue  # type: ignore[attr-defined]
        put_by_sql.url = url  # type: ignore[attr-defined]
        yield put_by_sql


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:20])
def test_what_python_refuses_sql_refuses_with_the_same_words(put: Any, text: str) -> None:
    with pytest.raises(InvalidArgument):
        check_json(text.encode(), "body")
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        put(text)
    why = str(refused.value)
    assert any(
        words in why
        for words in (
            "body is not JSON: invalid utf-16 surrogate pair",
            "body is not JSON: Number out of range",
            "body is nested too deeply: the limit is 500 levels",
        )
    )
    assert put.queue.counts().sizes.total == 0


@pytest.mark.parametrize("text", GOOD, ids=lambda text: text[:20])
def test_what_python_takes_sql_takes(put: Any, text: str) -> None:
    check_json(text.encode(), "body")
    put(text)
    (delivery,) = put.queue.claim()
    assert delivery.body == json.loads(text)


def test_headers_are_checked_as_well(put: Any, postgres: PostgresServer) -> None:
    schema = put.url.rpartition("&schema=")[2]
    with postgres.client() as client, pytest.raises(psycopg.errors.InvalidParameterValue):
        client.execute(
            f"SELECT {schema}.put('q', '1', headers => %s)".encode(), (r'{"a": "\ud83d"}',)
        )


@pytest.mark.parametrize("text", [r'"\ud83d"', "1e400", "[" * 100_000 + "]" * 100_000])
def test_what_is_there_stays_readable(put: Any, text: str, postgres_url: Callable[[], str]) -> None:
    queue = put.queue
    queue.put(0, id="first")
    put(text, checked=False)
    message = queue.get("a")
    assert message is not None
    with pytest.raises(UnreadableBody, match=r"not readable JSON .*message\.data"):
        message.body  # noqa: B018
    assert message.data == text.encode()
    shown = subprocess.run(
        [sys.executable, "-m", "bide", "get", "q", "a", "--body", "--url", put.url],
        capture_output=True,
        check=False,
    )
    assert (shown.stdout.strip(), shown.stderr, shown.returncode) == (text.encode(), b"", 0)
    with bide.Queue("copy", postgres_url()) as copy:
        assert copy.load(queue.export()).stored == 2
        copied = copy.get("a")
        assert copied is not None
        assert copied.body == text.encode()


def test_a_handler_gets_a_dead_letter_with_the_reason(put: Any) -> None:
    put.queue.put(0, id="first")
    put("1e400", checked=False)
    app = bide.App(put.url)
    bodies: list[object] = []

    @app.handler("q")
    def handle(body: object) -> None:
        bodies.append(body)

    async def run() -> None:
        async with app.running(), bide.AsyncQueue("q", put.url) as queue:
            deadline = time.monotonic() + 60
            while (counts := await queue.counts()).sizes.dead == 0 or counts.flow.acked == 0:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert bodies == [0]
    (dead,) = put.queue.dead()
    assert dead.id == "a"
    assert "not readable JSON" in dead.failures[-1].reason
