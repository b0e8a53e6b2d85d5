"""The dashboard of bide serve and bide dashboard: sessions, rights, admission, memory."""

import ast
import asyncio
import gc
import http.client
import json
import logging
import re
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from click.testing import CliRunner

import bide
import bide.dashboard
import bide.server.routes
from bide.cli import main
from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.app import Dashboard
from bide.dashboard.sessions import SESSION_MS
from bide.model import commands as cmd
from bide.model.limits import MAX_LOGIN_FORM
from bide.server.access.oidc import OidcSettings
from bide.server.app import ServerApp
from bide.server.limits.request_bodies import LARGE
from bide.server.session_table import SESSIONS_PER_TOKEN
from bide.server.settings import Quota, Settings
from tests.effort import one_in
from tests.system.dashboard.chromium import dashboard
from tests.system.dashboard.conftest import Stage, Visitor
from tests.system.dashboard.served import Guest, Served
from tests.system.server.client import Client
from tests.system.server.process import ServerProcess
from tests.system.server.test_oidc import issuing


def test_forms_of_strangers_are_small_and_all_forms_take_part_of_the_memory(served: Served) -> None:
    """To decode a megabyte takes a second, and thousands of connections may send as much."""
    guest = served.server(auth="required")
    fits = {"token": "x" * (MAX_LOGIN_FORM - len("token=&back=y")), "back": "y"}
    assert guest.post("/login", fits).status == 401
    assert guest.post("/login", {**fits, "back": "yy"}).status == 413
    assert guest.post("/language", {**fits, "back": "yy"}).status == 413
    long = "/search?q=" + "x" * 5_000
    for path, back in (("/search?q=x", "/dashboard/search?q=x"), (long, "/dashboard/")):
        assert f'name="back" value="{back}"' in guest.get(path).data.decode()
    guest.log_in(served.token("admin"))
    bodies = guest.client.app.service.large_bodies
    large = {"action": "audit", "queue": "orders", "more": "x" * 100_000}
    assert guest.post("/do", large).status == 200
    assert bodies.buffered == 0
    bodies.grow(0, bodies.most + LARGE)
    assert guest.post("/do", large).status == 503
    assert bodies.buffered == bodies.most


@pytest.mark.parametrize("path", ["/v1/queues/", "/v1/queues?prefix=", "/dashboard/", "/nothing/"])
def test_a_long_url_is_refused_before_it_is_decoded(served: Served, path: str) -> None:
    """Nor is a token looked for: to escape such a path again takes longer than a hundred puts."""
    refused = served.server(auth="required").client.get(path + "%41" * 20_000)
    assert refused.status == 400
    assert refused.problem["detail"] == "the URL is longer than 8,192 bytes"


def test_a_stranger_sees_no_form_to_edit_a_message(served: Served) -> None:
    guest = served.server(auth="required")
    refused = guest.post("/language", {"language": "x", "action": "edit", "id": "a", "body": "1"})
    assert refused.status == 404
    assert b"textarea" not in refused.data


def test_a_jwt_begins_no_session_whatever_its_subject_is(served: Served) -> None:
    id = served.token("admin").split("_")[1]
    with issuing() as issuer:
        guest = served.server(oidc=OidcSettings(issuer=issuer.url, audience="bide"))
        for subject in ("ann", id):
            jwt = issuer.token(sub=subject)
            assert guest.client.with_token(jwt).get("/v1").status == 200
            refused = guest.log_in(jwt)
            assert (refused.status, guest.cookie) == (401, "")
            assert b"only a bide token can begin a session" in refused.data


def test_a_token_begins_a_session(served: Served) -> None:
    served.queue("orders").put(1)
    token = served.token("read")
    guest = served.server(auth="required")
    stranger = guest.get("/queue?queue=orders")
    assert stranger.status == 401
    assert b"Log in" in stranger.data
    assert b'name="back" value="/dashboard/queue?queue=orders"' in stranger.data
    assert b"delayed" not in stranger.data
    reply = guest.log_in(token)
    assert (reply.status, reply.headers["location"]) == (303, "/dashboard/audit")
    flags = reply.headers["set-cookie"].split("; ")[1:]
    assert flags == ["Path=/dashboard", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]
    assert token not in reply.headers["set-cookie"]
    page = guest.get()
    assert page.status == 200
    assert b"You are ann." in page.data
    assert guest.get("/static/style.css").status == 200


def test_the_cookie_is_for_https_where_the_page_is(served: Served) -> None:
    guest = served.server(auth="required")
    origin = f"https://127.0.0.1:{guest.client.port}"
    fields = {"token": served.token("read")}
    cookie = guest.post("/login", fields, origin=origin).headers["set-cookie"]
    assert cookie.endswith("; Secure")
    guest.cookie = cookie.partition(";")[0]
    assert guest.cookie.startswith("__Host-bide_session=")
    assert "; Path=/;" in cookie  # else no browser takes a cookie of this name
    assert guest.get().status == 200
    kept = guest.cookie
    assert "__Host-bide_session=; Path=/;" in guest.post("/logout", {}).headers["set-cookie"]
    assert guest.get().status == 401
    guest.cookie = kept.removeprefix("__Host-")  # a page without TLS cannot pass it on
    assert guest.get().status == 401


def test_logging_out_ends_the_session_for_every_copy_of_its_cookie(served: Served) -> None:
    guest = served.server(auth="required")
    token = served.token("admin")
    guest.log_in(token)
    other = Guest(guest.client)
    other.log_in(token)
    assert b"Log out" in guest.get().data
    reply = guest.post("/logout", {})
    assert reply.status == 303
    assert reply.headers["set-cookie"].startswith("bide_session=; Path=/dashboard; Max-Age=0;")
    assert guest.get().status == 401  # the cookie was kept
    pause = {"action": "pause", "queue": "q", "on": "1", "back": "/dashboard/"}
    assert guest.post("/do", pause).status == 401
    assert other.get().status == 200
    assert guest.post("/logout", {}).status == 303  # a second time


def test_a_token_has_a_few_sessions_and_the_oldest_ends(served: Served) -> None:
    guest = served.server(auth="required")
    token = served.token("read")
    cookies = []
    for _ in range(SESSIONS_PER_TOKEN + 1):
        served.clock.advance(1)
        guest.log_in(token)
        cookies.append(guest.cookie)
    told = []
    for guest.cookie in cookies:
        told.append(guest.get().status)
    assert told == [401] + [200] * SESSIONS_PER_TOKEN


def test_logins_and_what_is_shown_are_in_both_logs(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.queue("shop/orders").put("diagnosis", id="patient-7", delay=60)
    guest = served.server(auth="required")
    guest.log_in("wrong")
    blind = served.token("read", namespace="shop", name="blind")
    guest.log_in(blind)
    guest.get("/message?queue=orders&id=patient-7")
    guest.log_in(served.token("put", namespace="shop", name="writer"))
    token = served.token("read", "bodies", namespace="shop", name="insider")
    guest.log_in(token)
    with caplog.at_level(logging.INFO, "bide.access"):
        shown = guest.get("/message?queue=orders&id=patient-7")
    assert b"diagnosis" in shown.data
    guest.get("/message?queue=orders&id=patient-7", hx_request="true")  # it has no body
    guest.get("/queue?queue=orders")
    guest.get("/queue?queue=orders", hx_request="true")
    guest.get("/search?q=patient")
    guest.post("/logout", {})
    lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    assert [
        (one["act"], one.get("who"), one["result"], one.get("queue"), one.get("target"))
        for one in lines
    ] == [
        ("login", None, "unauthorized", None, None),
        ("login", "blind", "done", None, None),
        ("login", "writer", "forbidden", None, None),
        ("login", "insider", "done", None, None),
        ("show", "insider", "done", "orders", "patient-7"),
        ("show", "insider", "done", "orders", None),
        ("show", "insider", "done", None, None),
        ("logout", "insider", "done", None, None),
    ]
    show = lines[4]
    id = token.split("_")[1]
    assert (show["token"], show["namespace"], show["client"]) == (id, "shop", "127.0.0.1")
    assert show["request"] == shown.headers["x-request-id"]
    (access,) = caplog.records
    assert access.getMessage().endswith(
        f"client=127.0.0.1 namespace=shop token={id} request={show['request']}"
    )


@pytest.mark.parametrize("text", ["", "nonsense", "bide_0123456789ab_wrong", "a.b.c"])
def test_a_wrong_token_begins_none(served: Served, text: str) -> None:
    served.token("read")
    guest = served.server(auth="required")
    reply = guest.log_in(text)
    assert reply.status == 401
    assert b'role="alert"' in reply.data
    assert "set-cookie" not in reply.headers


def test_many_wrong_tokens_are_slowed_down(served: Served) -> None:
    guest = served.server(auth="required")
    for number in range(20):
        guest.log_in(f"bide_0123456789ab_{number}")
    assert guest.log_in("bide_0123456789ab_more").status == 429


def test_a_token_that_may_not_read_begins_none(served: Served) -> None:
    token = served.token("put")
    guest = served.server(auth="required")
    reply = guest.log_in(token)
    assert reply.status == 401
    assert b"no right &#39;read&#39;" in reply.data


def test_revoking_the_token_ends_its_sessions(served: Served) -> None:
    guest = served.server(auth="required")
    guest.log_in(served.token("read"))
    assert guest.get().status == 200
    served.tokens.revoke("ann")
    assert guest.get().status == 401


def test_a_rotated_token_ends_its_sessions_when_it_is_refused(served: Served) -> None:
    guest = served.server(auth="required")
    guest.log_in(served.token("read"))
    served.tokens.rotate("ann", overlap_ms=60_000)
    assert guest.get().status == 200
    served.clock.advance(61)
    assert guest.get().status == 401


def test_a_session_ends_after_a_while(served: Served) -> None:
    guest = served.server(auth="required")
    guest.log_in(served.token("read"))
    served.clock.advance(SESSION_MS / 1000 - 1)
    assert guest.get().status == 200
    served.clock.advance(1)
    assert guest.get().status == 401


def test_a_cookie_cannot_be_made_up_or_changed(served: Served) -> None:
    guest = served.server(auth="required")
    guest.log_in(served.token("read"))
    name, _, value = guest.cookie.partition("=")
    id, session, expires, code = value.split(".")
    place, _, secret = session.partition("-")
    later = str(int(expires) + 1)
    for forged in (
        f"{id}.{session}.{later}.{code}",
        f"{id}.{session}.{expires}.{code[:-1]}0x",
        f"{id}.{session}.{expires}.",
        f"{id}.{session}..{code}",
        f"{id}.{session}.-1.{code}",
        f"0123456789ab.{session}.{expires}.{code}",
        f"{id}.{session}.{expires}",
        "...",
        "é.1.1.é",
        *(
            f"{id}.{other}.{expires}.{code}"
            for other in (
                "",
                "-",
                place,
                f"{place}-",
                f"-{secret}",
                f"{place}-{secret[:-1]}",
                f"{place}-{'0' * 32}",
                f"{place}-{'x' * 32}",
                f"99999-{secret}",
                f"-1-{secret}",
                f"{int(place) + 1}-{secret}",
                f"{'9' * 30}-{secret}",
            )
        ),
    ):
        guest.cookie = f"{name}={forged}".encode().decode("latin-1")
        assert guest.get().status == 401, forged
    other = served.server(b"another secret", auth="required")
    other.cookie = f"{name}={value}"
    assert other.get().status == 401


def test_rights_decide_what_is_shown_and_allowed(served: Served) -> None:
    orders = served.queue("orders")
    orders.put({"secret": "xyzzy"}, id="order-42", delay=60)
    guest = served.server(auth="required")
    guest.log_in(served.token("read", name="reader"))
    page = guest.get("/message?queue=orders&id=order-42")
    assert page.status == 200
    assert b"xyzzy" not in page.data
    assert b'value="cancel"' not in page.data
    cancel = {"action": "cancel", "queue": "orders", "id": "order-42", "confirmed": "1"}
    assert guest.post("/do", cancel).status == 403
    guest.log_in(served.token("read", "bodies", "change", name="support"))
    page = guest.get("/message?queue=orders&id=order-42")
    assert b"xyzzy" in page.data
    assert b'value="cancel"' in page.data
    assert b'value="copy"' not in page.data
    assert guest.post("/do", {**cancel, "action": "pause", "on": "1"}).status == 403
    assert guest.post("/do", cancel).status == 303
    assert orders.get("order-42") is None
    lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    told = [
        (one["act"], one["who"], one["result"], one["client"])
        for one in lines
        if one["act"] not in ("login", "show")
    ]
    assert told == [
        ("cancel", "reader", "forbidden", "127.0.0.1"),
        ("pause", "support", "forbidden", "127.0.0.1"),
        ("cancel", "support", "done", "127.0.0.1"),
    ]


def test_a_tenant_sees_their_namespace_alone(served: Served) -> None:
    served.queue("shop/orders").put(1, id="mine", delay=60)
    served.queue("other/orders").put(1, id="theirs", delay=60)
    guest = served.server(auth="required")
    act = {"action": "pause", "on": "1", "back": "/dashboard/"}
    guest.log_in(served.token("admin", name="theirs", namespace="other"))
    assert guest.post("/do", {**act, "queue": "orders"}).status == 303
    guest.log_in(served.token("read", name="reader", namespace="shop"))
    assert guest.get("/log").status == 403
    guest.log_in(served.token("admin", namespace="shop"))
    assert guest.post("/do", {**act, "queue": "orders"}).status == 303
    log = guest.get("/log").data
    assert (log.count(b">pause<"), b"theirs" in log) == (1, False)
    for path in (
        "/",
        "/dead",
        "/workers",
        "/audit",
        "/periodic",
        "/subscriptions",
        "/log",
        "/search?q=x",
    ):
        assert b"other" not in guest.get(path).data
    assert b"mine" in guest.get("/queue?queue=orders").data
    assert guest.get("/message?queue=orders&id=theirs").status == 404


def test_without_tokens_this_machine_may_do_everything(served: Served) -> None:
    orders = served.queue("orders")
    orders.put(1)
    guest = served.server(dashboard_hide=["card"])
    assert guest.get().status == 200
    assert guest.get(host="evil.example").status == 403
    pause = {"action": "pause", "queue": "orders", "on": "1", "back": "/dashboard/"}
    assert guest.post("/do", pause, origin="https://evil.example").status == 403
    assert guest.post("/do", pause).status == 303
    served.token("read")
    served.clock.advance(2)
    assert guest.get().status == 401


def test_forms_of_other_sites_do_not_log_in(served: Served) -> None:
    guest = served.server(auth="required")
    fields = {"token": served.token("read")}
    assert guest.post("/login", fields, sec_fetch_site="cross-site").status == 403
    assert guest.post("/logout", {}, origin="https://evil.example").status == 403


def test_a_link_of_another_site_is_asked_for_again_with_the_cookie(served: Served) -> None:
    guest = served.server(auth="required")
    assert guest.get(sec_fetch_site="cross-site").headers["refresh"] == "0"
    assert "refresh" not in guest.get().headers


def test_the_api_is_beside_the_dashboard(served: Served) -> None:
    guest = served.server(auth="required")
    assert guest.client.send("GET", "/healthz").status == 200
    assert guest.client.send("GET", "/dashboardx").status == 404
    assert guest.client.send("GET", "/dashboard").headers["location"] == "/dashboard/"


def test_the_store_may_be_behind_a_server(served: Served) -> None:
    orders = served.queue("orders")
    orders.put(1, id="order-42", delay=60)
    port = served.server().client.port
    access = Access(name="ann", actions=ACTIONS)
    app = Dashboard(f"http://127.0.0.1:{port}", lambda scope: access)
    served.open.callback(lambda: asyncio.run(app.close()))
    visitor = Visitor(app)
    served.open.callback(visitor.close)
    for page in (
        "/",
        "/queue?queue=orders",
        "/message?queue=orders&id=order-42",
        "/dead",
        "/workers",
        "/periodic",
        "/audit",
        "/search?q=order-42",
    ):
        assert visitor.get(page).status == 200
    assert "Subscriptions" not in visitor.get("/").text  # the server shows them
    assert visitor.do("cancel", queue="orders", id="order-42", confirmed="1").status == 303
    assert orders.get("order-42") is None


@pytest.mark.process
def test_all_processes_of_a_server_know_a_session(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with served.open:
        token = served.token("read")
        server = ServerProcess(
            tmp_path, "--store", served.url, "--dashboard", "--workers", "2", "--no-push"
        )
        try:
            app = ServerApp(Settings(store="memory://"))
            cookies: list[str] = []
            for _ in range(8):  # each on a connection of its own
                with Client(server.port, app) as client:
                    guest = Guest(client)
                    if not cookies:
                        guest.log_in(token)
                        cookies.append(guest.cookie)
                    guest.cookie = cookies[0]
                    assert guest.get().status == 200
            server.until(r"GET /dashboard/ 200")
        finally:
            assert server.stop() == 0
        assert not re.search(r"Traceback|ERROR", server.text)


def test_who_must_log_in_again_comes_back_to_the_page_of_the_form(served: Served) -> None:
    guest = served.server(auth="required")
    page = "/dashboard/message?queue=orders&id=a%2Fb"
    form = {"action": "edit", "queue": "orders", "id": "a/b", "back": page}
    for referer, back in (
        (f"http://127.0.0.1:1{page}", page.replace("&", "&amp;")),
        ("http://[", "/dashboard/"),
        ("http://127.0.0.1:1/dashboard/do", "/dashboard/"),
    ):
        login = guest.post("/do", form, referer=referer)
        assert login.status == 401
        assert login.data.decode().count(f'name="back" value="{back}"') == 2
    # The page of a failed login is no page to come back to, either.
    again = guest.post("/login", {"token": "x"}, referer="http://127.0.0.1:1/dashboard/login")
    assert again.data.decode().count('name="back" value="/dashboard/"') == 2


def ask(
    base: str, method: str, path: str, fields: dict[str, str] | None = None, **headers: str
) -> tuple[int, str]:
    """Send a request; return the status and the text of the answer."""
    connection = http.client.HTTPConnection(str(urlsplit(base).netloc), timeout=60)
    data = None if fields is None else urlencode(fields)
    connection.request(method, path, data, headers)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


@pytest.mark.process
def test_it_serves_this_machine_and_logs_actions(tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/shop.db", tmp_path / "actions.log"
    with bide.Queue("orders", url) as orders:
        orders.put(1, id="order-42", delay=60)
        pause = {"action": "pause", "queue": "orders", "on": "1", "back": "/"}
        with dashboard(url, "--action-log", str(log)) as base:
            status, page = ask(base, "GET", "/message?queue=orders&id=order-42")
            assert (status, "order-42" in page) == (200, True)
            assert "hx-get" in page
            status, page = ask(base, "GET", "/", Host="evil.example")
            assert (status, "orders" in page) == (403, False)
            assert ask(base, "POST", "/do", pause, Host="evil.example")[0] == 403
            assert ask(base, "POST", "/do", pause, Origin="https://evil.example")[0] == 403
            assert ask(base, "GET", "/v1/queues")[0] == 404  # it is no server of the API
            assert not orders.counts().paused
            assert ask(base, "POST", "/do", pause)[0] == 303
            assert orders.counts().paused
        lines = map(json.loads, log.read_text().splitlines())
        (line,) = (line for line in lines if line["act"] != "show")
        assert (line["act"], line["who"], line["queue"]) == ("pause", "ann", "orders")
        orders.resume()
        with dashboard(url, "--read-only") as base:
            assert ask(base, "GET", "/")[0] == 200
            assert ask(base, "POST", "/do", pause)[0] == 403
        assert not orders.counts().paused


@pytest.mark.process
def test_mistakes_are_explained(tmp_path: Path) -> None:
    run = CliRunner().invoke
    memory = run(main, ["dashboard", "memory://"])
    assert memory.exit_code == 2
    assert "no other process sees" in memory.output
    url = f"sqlite:///{tmp_path}/shop.db"
    with bide.Queue("orders", url) as orders:
        orders.put(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = run(main, ["dashboard", url, "--port", port])
    assert busy.exit_code == 2
    assert "does another server use it?" in busy.output


FACES = [
    path
    for package in (bide.dashboard, bide.server.routes)
    for folder in package.__path__
    for path in Path(folder).rglob("*.py")
]


def test_no_face_reaches_the_store_beside_the_gate() -> None:
    """Commands of a face go through `Visit.execute` or `past`, `Service.batch` or `wait`."""
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
    with slow_calls.counting("a", "192.0.2.1"):  # as a request of the API has it
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
    gate = visitor.app.own_gate
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
            stack.enter_context(gate.slow_calls.counting(None, ""))
        assert visitor.get("/search?body=x").status == 429


BODY = "ab" * 100_000

COUNT = 10


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let reference cycles stay, as between two runs of the collector of a server."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def full(stage: Stage) -> None:
    """Put large messages in every state, with large errors."""
    queue = stage.queue("orders")
    for number in range(COUNT):
        queue.put(BODY, id=f"later{number}", delay=60)
        queue.put(BODY, id=f"dead{number}", headers={"trace": "x" * 10_000})
        queue.claim(1)[0].bury("no\n" + "y" * 8_000)
        queue.put(BODY, id=f"held{number}")
        queue.claim(1, lease=3_600)


PAGES = (
    "/queue?queue=orders",
    "/queue?queue=orders&state=dead",
    "/search?q=later",
    "/message?queue=orders&id=later1",
    "/message?queue=orders&id=dead1",
    "/dead",
    "/workers",
)


@pytest.mark.parametrize("page", one_in(3, PAGES))
@pytest.mark.usefixtures("full", "no_collector")
def test_a_page_leaves_little_behind(ann: Visitor, page: str) -> None:
    assert ann.get(page).status == 200  # what is loaded once
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            assert ann.get(page).status == 200
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10 * len(BODY)  # ten messages in each of ten pages


@pytest.mark.usefixtures("full", "no_collector")
def test_a_question_leaves_little_behind(ann: Visitor) -> None:
    def ask() -> None:
        ids = [f"later{number}" for number in range(COUNT)]
        assert "later9" in ann.do("cancel", queue="orders", id=ids).text

    ask()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            ask()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10 * len(BODY)
