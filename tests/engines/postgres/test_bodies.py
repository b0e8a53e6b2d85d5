"""Bodies that SQL puts: the same rule as elsewhere, and what is there already stays readable."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import bide
from bide.model.body import check_json
from bide.model.errors import InvalidArgument, UnreadableBody
from tests.postgres_server import PostgresServer

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


@pytest.fixture
def put(postgres: PostgresServer, postgres_url: Callable[[], str]) -> Iterator[Any]:
    """Put a body by SQL; also past its check, as an older function did."""
    url = postgres_url()
    schema = url.rpartition("&schema=")[2]
    with bide.Queue("q", url) as queue, postgres.client() as client:
        queue.counts()  # this makes the schema

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


@pytest.mark.parametrize("text", [r'"\ud83d"', "1e400", "[" * 2000 + "]" * 2000])
def test_what_is_there_stays_readable(put: Any, text: str, postgres_url: Callable[[], str]) -> None:
    queue = put.queue
    queue.put(0, id="first")
    put(text, checked=False)
    message = queue.get("a")
    assert message is not None
    with pytest.raises(UnreadableBody, match=r"no JSON that can be read .*message\.data"):
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
    assert "no JSON that can be read" in dead.failures[-1].reason
