"""The dashboard passes the same gate as the API: what limits a token there limits it here."""

import ast
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import bide.dashboard
import bide.server.routes
from bide.model import commands as cmd
from bide.server.settings import Quota
from tests.dashboard.conftest import Stage, Visitor
from tests.dashboard.served import Served

FACES = [
    path
    for package in (bide.dashboard, bide.server.routes)
    for folder in package.__path__
    for path in Path(folder).rglob("*.py")
]


def test_no_face_reaches_the_store_beside_the_gate() -> None:
    """Commands of a face go through `Visit.execute`, `Service.batch` or `Service.wait`."""
    found = {
        (path.name, function.name)
        for path in FACES
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if (isinstance(node, ast.Attribute) and node.attr == "acall")
        or (isinstance(node, ast.Name) and node.id == "open_lane")
    }
    assert found == {("app.py", "_gate_of")}  # it makes the gate of a mounted dashboard


def test_pages_count_as_transferred(served: Served) -> None:
    orders = served.queue("a/orders")
    orders.put("x" * 50_000, id="m", delay=60)
    guest = served.server(auth="required", quotas={"a": Quota(byte_rate=20_000)})
    guest.log_in(served.token("read", "bodies", namespace="a"))
    page = "/message?queue=orders&id=m"
    first = guest.get(page)
    assert (first.status, len(first.data) > 50_000) == (200, True)
    refused = guest.get(page)
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) > 1
    assert b"byte_rate" in refused.data
    assert len(refused.data) < 300  # the page of an error is larger
    guest.client.token = served.token("read", namespace="a", name="bob")
    assert guest.client.get("/v1/queues/orders").status == 429  # it is one limit
    guest.client.token = served.token("read", namespace="b", name="eve")
    assert guest.client.get("/v1/queues/orders").status == 200


def test_searches_count_as_slow_reads(served: Served) -> None:
    served.queue("a/orders").put("x", id="m", delay=60)
    guest = served.server(auth="required", max_slow_reads=1)
    guest.log_in(served.token("read", "bodies", namespace="a"))
    assert guest.client.app is not None
    slow_calls = guest.client.app.service.gate.slow_calls
    with slow_calls.one("a", "192.0.2.1"):  # as a request of the API has it
        for page in ("/search?body=x", "/queue?queue=orders&prefix=m"):
            refused = guest.get(page)
            assert refused.status == 429
            assert b"max_slow_reads" in refused.data
        assert guest.get("/queue?queue=orders").status == 200
    assert guest.get("/search?body=x").status == 200


@pytest.fixture
def read(stage: Stage) -> Iterator[list[Any]]:
    """Provide the list of commands that the store gets."""
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        from bide.lane.lane import Lane

        acall = Lane.acall

        async def noted(self: Lane, command: Any, *more: Any, **named: Any) -> Any:
            found.append(command)
            return await acall(self, command, *more, **named)

        patch.setattr(Lane, "acall", noted)
        yield found


def test_what_is_refused_empties_no_cache(stage: Stage, read: list[Any]) -> None:
    stage.queue("orders").put(1, id="a", delay=60)
    reader = stage.visitor(bide.dashboard.Access(name="eve"))

    def commands_of_a_page() -> int:
        read.clear()
        assert reader.get("/").status == 200
        return len(read)

    assert commands_of_a_page() > 0
    assert commands_of_a_page() == 0
    assert reader.do("cancel", queue="orders", id="a", confirmed="1").status == 403
    assert reader.post("/none", {}).status == 405
    assert reader.do("none").status == 404
    assert commands_of_a_page() == 0


def test_an_action_empties_the_cache_of_its_namespace(stage: Stage, read: list[Any]) -> None:
    for namespace in ("a", "b"):
        stage.queue(f"{namespace}/orders").put(1, id="m", delay=60)
    visitors = {"ann": "a", "bob": "b"}

    def access(scope: Any) -> bide.dashboard.Access:
        name = dict(scope["headers"])[b"who"].decode()
        return bide.dashboard.Access(
            name=name, namespace=visitors[name], actions=bide.dashboard.ACTIONS
        )

    both = stage.visitor(access)
    for who in visitors:
        assert both.get("/", who=who).status == 200
    done = both.post(
        "/do", {"action": "cancel", "queue": "orders", "id": "m", "confirmed": "1"}, who="ann"
    )
    assert done.status == 303
    read.clear()
    both.get("/", who="bob")
    assert read == []
    both.get("/", who="ann")
    assert any(isinstance(command, cmd.Count) for command in read)


def test_a_mounted_dashboard_has_a_gate_of_its_own(stage: Stage) -> None:
    stage.queue("orders").put("x", id="m", delay=60)
    visitor: Visitor = stage.visitor()
    gate = visitor.app._own_gate
    taken: list[int] = []
    take = gate.replies.take

    async def noted(namespace: str | None, size: int, client: Any) -> int:
        taken.append(size)
        got: int = await take(namespace, size, client)
        return got

    gate.replies.take = noted
    assert visitor.get("/search?body=x").status == 200
    assert max(taken) >= 8 << 20
    assert gate.replies.taken == 0
    with ExitStack() as stack:
        for _ in range(gate.slow_calls.most):
            stack.enter_context(gate.slow_calls.one(None, ""))
        assert visitor.get("/search?body=x").status == 429
