"""What the log says of a request, and that it looks like what it says of others."""

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from bide.model.limits import MAX_LOGGED_PATH
from bide.observing.logs import JsonFormatter, PlainFormatter
from bide.server.access.rights import OPEN, Caller
from bide.server.logs import log_request
from tests.server.conftest import Serve
from tests.server.test_clients import until

_CALLER = Caller(None, frozenset(), token="a1b2")
_TOLD = ("GET", "/v1/queues", 200, 0.0123456, "listQueues", "127.0.0.1", _CALLER, "r-7")


class Kept(logging.Handler):
    """Keeps the records that come."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    log, handler = logging.getLogger("bide.access"), Kept()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


def test_a_request_is_an_object_with_what_it_was(kept: Kept) -> None:
    began = time.time()
    log_request(*_TOLD)
    (record,) = kept.records
    entry = msgspec.json.decode(JsonFormatter().format(record))
    assert began <= record.created <= time.time()
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "bide.access",
        "pid": os.getpid(),
        "message": "GET /v1/queues 200 12.3 ms client=127.0.0.1 namespace=- token=a1b2 request=r-7",
        "method": "GET",
        "path": "/v1/queues",
        "status": 200,
        "duration": 0.012346,
        "operation": "listQueues",
        "client": "127.0.0.1",
        "namespace": "",
        "token": "a1b2",
        "request": "r-7",
    }


def test_other_handlers_find_all_that_records_have(kept: Kept) -> None:
    log_request(*_TOLD)
    (record,) = kept.records
    said = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s %(path)s")
    assert " INFO bide.access GET /v1/queues 200 12.3 ms client=" in said.format(record)
    assert said.format(record).endswith(" /v1/queues")
    plain = logging.LogRecord("x", logging.INFO, "", 0, "", (), None)
    assert set(vars(plain)) <= set(vars(record))


def test_a_path_that_is_cut_says_so_whatever_was_cut_off(kept: Kept) -> None:
    log_request("GET", "/" + "p" * MAX_LOGGED_PATH + "\x7f", *_TOLD[2:])
    (record,) = kept.records
    assert f"GET /{'p' * (MAX_LOGGED_PATH - 2)}… 200" in record.getMessage()


def test_nothing_is_told_below_the_level(kept: Kept) -> None:
    logging.getLogger("bide.access").setLevel(logging.WARNING)
    log_request(*_TOLD)
    assert kept.records == []


def test_a_line_tells_who_asked_and_is_bounded(serve: Serve, make_token: Any, kept: Kept) -> None:
    server = serve(auth="required")
    shop = server.with_token(make_token("shop", "read"))
    assert shop.get("/v1/queues").status == 200
    raw = b"GET /v1/\x9b2J" + b"x" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(raw)
        assert connection.recv(100)
    until(lambda: len(kept.records) == 2)
    known, refused = (PlainFormatter("%(message)s").format(record) for record in kept.records)
    id = str(shop.token).split("_")[1]
    assert f" ms client=127.0.0.1 namespace=shop token={id} request=" in known
    assert len(refused) < 300
    assert "client=127.0.0.1 namespace=- token=-" in refused
    assert all(len(JsonFormatter().format(record)) < 1_000 for record in kept.records)


def test_control_characters_of_a_path_are_escaped_for_every_handler(kept: Kept) -> None:
    log_request("GET", "/v1/\x9b2J\x1b[2J", 404, 0.1, "", "127.0.0.1", OPEN)
    assert kept.records[0].getMessage().startswith(r"GET /v1/\x9b2J\x1b[2J 404 100.0 ms client=")


def test_an_answer_has_the_id_of_its_line_and_is_kept_by_nobody(
    serve: Serve, make_token: Any, kept: Kept
) -> None:
    client = serve(auth="required")
    known = client.with_token(make_token("shop", "admin"))
    replies = [
        known.get("/v1/queues"),
        client.get("/v1/queues"),
        client.get("/none"),
        known.send("PATCH", "/healthz"),
        known.get("/v1/queues/" + "x" * 9_000),
        client.get("/openapi.json"),
        known.get("/metrics"),
        known.get("/v1/queues/q/messages/m"),
    ]
    until(lambda: len(kept.records) == len(replies))
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len({*ids}) == len(ids)
    assert [record.__dict__["request"] for record in kept.records] == ids
    for reply in replies:
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
    body = known.put("/v1/queues/q/messages/m", {"body": "<script>"}).headers
    assert body["x-content-type-options"] == "nosniff"


def test_a_message_is_one_line_whatever_it_says() -> None:
    text = "a queue\n2026-11-28 INFO forged\r\x1b[2J" + "x" * 100_000
    record = logging.LogRecord("bide", logging.INFO, "", 0, "%s", (text,), None)
    line = PlainFormatter("%(levelname)s %(message)s").format(record)
    assert line.isprintable()
    assert line.startswith(r"INFO a queue\n2026-11-28 INFO forged\r\x1b[2Jxxx")
    assert len(line) < 5_000
    assert len(JsonFormatter().format(record)) < 5_000
    try:
        raise ValueError("a traceback has its lines")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert len(PlainFormatter("%(message)s").format(record).splitlines()) == 5
