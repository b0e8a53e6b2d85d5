"""The dashboard of `bide serve`: sessions, rights, quotas."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import bide
from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.app import Dashboard
from bide.dashboard.served import LASTS, dashboard_of
from bide.lane.shared import close_lane, open_lane
from bide.model.limits import MAX_LOGIN_FORM
from bide.server.access.oidc import OidcSettings
from bide.server.access.tokens import Tokens
from bide.server.app import App
from bide.server.limits.request_bodies import LARGE
from bide.server.settings import Quota, Settings
from bide.testing import FakeClock
from tests.dashboard.conftest import Visitor
from tests.server.client import Client, Reply
from tests.server.conftest import running
from tests.server.process import ServerProcess
from tests.server.test_oidc import issuing

KEY = b"a secret of the server"


class Guest:
    """A browser without pages: it keeps the cookie of a session."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cookie = ""

    def get(self, path: str = "/", **headers: Any) -> Reply:
        sent = {"cookie": self.cookie, **headers} if self.cookie else headers
        return self.client.send("GET", f"/dashboard{path}", **sent)

    def post(self, path: str, fields: dict[str, str], **headers: Any) -> Reply:
        sent = {"cookie": self.cookie, **headers} if self.cookie else headers
        form = "application/x-www-form-urlencoded"
        data = urlencode(fields).encode()
        return self.client.send("POST", f"/dashboard{path}", data=data, content_type=form, **sent)

    def log_in(self, token: str) -> Reply:
        reply = self.post("/login", {"token": token, "back": "/dashboard/audit"})
        if reply.status == 303:
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return reply


class Stage:
    """A server with tokens and the dashboard."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/bide.db"
        self.log = folder / "actions.log"
        self.clock = FakeClock()
        self.open = ExitStack()
        self._lane = open_lane(self.url, self.clock)
        self.open.callback(close_lane, self._lane)
        self.tokens = Tokens(self._lane, self.clock)

    def server(self, key: bytes = KEY, **settings: Any) -> Guest:
        told = Settings(store=self.url, action_log=str(self.log), **settings)
        app = App(told, self.clock, pages=lambda service: dashboard_of(service, key))
        port = self.open.enter_context(running(app))
        return Guest(self.open.enter_context(Client(port, app)))

    def token(self, *rights: str, namespace: str | None = None, name: str = "ann") -> str:
        return self.tokens.create(namespace, rights, name=name)[0]

    def queue(self, name: str) -> bide.Queue:
        return self.open.enter_context(bide.Queue(name, self.url, clock=self.clock))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with stage.open:
        yield stage


def test_forms_of_strangers_are_small_and_all_forms_take_part_of_the_memory(stage: Stage) -> None:
    """To decode a megabyte takes a second, and thousands of connections may send as much."""
    guest = stage.server(auth="required")
    fits = {"token": "x" * (MAX_LOGIN_FORM - len("token=&back=y")), "back": "y"}
    assert guest.post("/login", fits).status == 401
    assert guest.post("/login", {**fits, "back": "yy"}).status == 413
    assert guest.post("/language", {**fits, "back": "yy"}).status == 413
    long = "/search?q=" + "x" * 5_000
    for path, back in (("/search?q=x", "/dashboard/search?q=x"), (long, "/dashboard/")):
        assert f'name="back" value="{back}"' in guest.get(path).data.decode()
    guest.log_in(stage.token("admin"))
    bodies = guest.client.app.service.large_bodies
    large = {"action": "audit", "queue": "orders", "more": "x" * 100_000}
    assert guest.post("/do", large).status == 200
    assert bodies.buffered == 0
    bodies.grow(0, bodies._most + LARGE)
    assert guest.post("/do", large).status == 503
    assert bodies.buffered == bodies._most


def test_a_jwt_begins_no_session_whatever_its_subject_is(stage: Stage) -> None:
    id = stage.token("admin").split("_")[1]
    with issuing() as issuer:
        guest = stage.server(oidc=OidcSettings(issuer=issuer.url, audience="bide"))
        for subject in ("ann", id):
            jwt = issuer.token(sub=subject)
            assert guest.client.with_token(jwt).get("/v1").status == 200
            refused = guest.log_in(jwt)
            assert (refused.status, guest.cookie) == (401, "")
            assert b"only a token of bide begins a session" in refused.data


def test_a_token_begins_a_session(stage: Stage) -> None:
    stage.queue("orders").put(1)
    token = stage.token("read")
    guest = stage.server(auth="required")
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


def test_the_cookie_is_for_https_where_the_page_is(stage: Stage) -> None:
    guest = stage.server(auth="required")
    origin = f"https://127.0.0.1:{guest.client.port}"
    fields = {"token": stage.token("read")}
    assert guest.post("/login", fields, origin=origin).headers["set-cookie"].endswith("; Secure")


def test_logging_out_ends_the_session_in_the_browser(stage: Stage) -> None:
    guest = stage.server(auth="required")
    guest.log_in(stage.token("read"))
    assert b"Log out" in guest.get().data
    reply = guest.post("/logout", {})
    assert reply.status == 303
    assert reply.headers["set-cookie"].startswith("bide_session=; Path=/dashboard; Max-Age=0;")


@pytest.mark.parametrize("text", ["", "nonsense", "bide_0123456789ab_wrong", "a.b.c"])
def test_a_wrong_token_begins_none(stage: Stage, text: str) -> None:
    stage.token("read")
    guest = stage.server(auth="required")
    reply = guest.log_in(text)
    assert reply.status == 401
    assert b'role="alert"' in reply.data
    assert "set-cookie" not in reply.headers


def test_many_wrong_tokens_are_slowed_down(stage: Stage) -> None:
    guest = stage.server(auth="required")
    for number in range(20):
        guest.log_in(f"bide_0123456789ab_{number}")
    assert guest.log_in("bide_0123456789ab_more").status == 429


def test_a_token_that_may_not_read_begins_none(stage: Stage) -> None:
    token = stage.token("put")
    guest = stage.server(auth="required")
    reply = guest.log_in(token)
    assert reply.status == 401
    assert b"no right &#39;read&#39;" in reply.data


def test_revoking_the_token_ends_its_sessions(stage: Stage) -> None:
    guest = stage.server(auth="required")
    guest.log_in(stage.token("read"))
    assert guest.get().status == 200
    stage.tokens.revoke("ann")
    assert guest.get().status == 401


def test_a_rotated_token_ends_its_sessions_when_it_is_refused(stage: Stage) -> None:
    guest = stage.server(auth="required")
    guest.log_in(stage.token("read"))
    stage.tokens.rotate("ann", overlap_ms=60_000)
    assert guest.get().status == 200
    stage.clock.advance(61)
    assert guest.get().status == 401


def test_a_session_ends_after_a_while(stage: Stage) -> None:
    guest = stage.server(auth="required")
    guest.log_in(stage.token("read"))
    stage.clock.advance(LASTS / 1000 - 1)
    assert guest.get().status == 200
    stage.clock.advance(1)
    assert guest.get().status == 401


def test_a_cookie_cannot_be_made_up_or_changed(stage: Stage) -> None:
    guest = stage.server(auth="required")
    guest.log_in(stage.token("read"))
    name, _, value = guest.cookie.partition("=")
    id, expires, code = value.split(".")
    later = str(int(expires) + 1)
    for forged in (
        f"{id}.{later}.{code}", f"{id}.{expires}.{code[:-1]}0x", f"{id}.{expires}.",
        f"{id}..{code}",
        f"0123456789ab.{expires}.{code}", f"{id}.{expires}", f"{id}.-1.{code}", "..", "é.1.é",
    ):  # fmt: skip
        guest.cookie = f"{name}={forged}".encode().decode("latin-1")
        assert guest.get().status == 401, forged
    other = stage.server(b"another secret", auth="required")
    other.cookie = f"{name}={value}"
    assert other.get().status == 401


def test_rights_decide_what_is_shown_and_allowed(stage: Stage) -> None:
    orders = stage.queue("orders")
    orders.put({"secret": "xyzzy"}, id="order-42", delay=60)
    guest = stage.server(auth="required")
    guest.log_in(stage.token("read", name="reader"))
    page = guest.get("/message?queue=orders&id=order-42")
    assert page.status == 200
    assert b"xyzzy" not in page.data
    assert b'value="cancel"' not in page.data
    cancel = {"action": "cancel", "queue": "orders", "id": "order-42", "confirmed": "1"}
    assert guest.post("/do", cancel).status == 403
    guest.log_in(stage.token("read", "bodies", "change", name="support"))
    page = guest.get("/message?queue=orders&id=order-42")
    assert b"xyzzy" in page.data
    assert b'value="cancel"' in page.data
    assert b'value="copy"' not in page.data
    assert guest.post("/do", {**cancel, "action": "pause", "on": "1"}).status == 403
    assert guest.post("/do", cancel).status == 303
    assert orders.get("order-42") is None
    lines = [json.loads(line) for line in stage.log.read_text().splitlines()]
    told = [(one["act"], one["who"], one["result"], one["client"]) for one in lines]
    assert told == [
        ("cancel", "reader", "forbidden", "127.0.0.1"),
        ("pause", "support", "forbidden", "127.0.0.1"),
        ("cancel", "support", "done", "127.0.0.1"),
    ]


def test_a_tenant_sees_their_namespace_alone(stage: Stage) -> None:
    stage.queue("shop/orders").put(1, id="mine", delay=60)
    stage.queue("other/orders").put(1, id="theirs", delay=60)
    guest = stage.server(auth="required")
    act = {"action": "pause", "on": "1", "back": "/dashboard/"}
    guest.log_in(stage.token("admin", name="theirs", namespace="other"))
    assert guest.post("/do", {**act, "queue": "orders"}).status == 303
    guest.log_in(stage.token("read", name="reader", namespace="shop"))
    assert guest.get("/log").status == 403
    guest.log_in(stage.token("admin", namespace="shop"))
    assert guest.post("/do", {**act, "queue": "orders"}).status == 303
    log = guest.get("/log").data
    assert (log.count(b">pause<"), b"theirs" in log) == (1, False)
    for path in ("/", "/dead", "/workers", "/audit", "/periodic", "/subscriptions", "/log",
                 "/search?q=x"):  # fmt: skip
        assert b"other" not in guest.get(path).data
    assert b"mine" in guest.get("/queue?queue=orders").data
    assert guest.get("/message?queue=orders&id=theirs").status == 404


def test_quotas_hold_for_copies_and_moves(stage: Stage) -> None:
    orders = stage.queue("shop/orders")
    orders.put(1, id="a", delay=60)
    quota = Quota(pending=1, longest_delay="1d")
    guest = stage.server(auth="required", quotas={"shop": quota})
    guest.log_in(stage.token("admin", namespace="shop"))
    fields = {"queue": "orders", "id": "a", "back": "/dashboard/"}
    assert guest.post("/do", {**fields, "action": "copy", "new": "b"}).status == 507
    assert orders.get("b") is None
    far = {**fields, "action": "reschedule", "delay": "2d"}
    assert guest.post("/do", far).status == 400
    assert guest.post("/do", {**far, "delay": "2h"}).status == 303


def test_quotas_hold_for_what_settings_make_and_changes_note(stage: Stage) -> None:
    orders = stage.queue("shop/orders")
    orders.put_many(["x" * 2_000] * 4, delay=60, group="g")
    guest = stage.server(auth="required", quotas={"shop": Quota(queues=1, stored=10_000)})
    guest.log_in(stage.token("admin", namespace="shop"))
    back = {"back": "/dashboard/"}
    move = {
        "action": "reschedule", "queue": "orders", "by": "rule", "group": "g", "delay": "1h",
        "confirmed": "1", **back,
    }  # fmt: skip
    told = [guest.post("/do", move).status for _ in range(3)]  # the first count is not waited for
    assert (told[0], told[-1]) == (303, 507)
    pause = {"action": "pause", "on": "1", **back}
    assert guest.post("/do", {**pause, "queue": "more"}).status == 507
    assert guest.post("/do", {**pause, "queue": "orders"}).status == 303
    cancel = {**move, "action": "cancel"}
    assert guest.post("/do", cancel).status == 303


def test_quotas_hold_for_what_an_undo_puts_back(stage: Stage) -> None:
    orders = stage.queue("shop/orders")
    orders.put_many([1, 2], delay="2d", group="g")
    guest = stage.server(auth="required", quotas={"shop": Quota(longest_delay="1d")})
    guest.log_in(stage.token("admin", namespace="shop"))
    fields = {"action": "undo", "queue": "orders", "back": "/dashboard/"}
    undo = orders.reschedule(group="g", delay=60, undo=True).undo
    assert guest.post("/do", {**fields, "undo": undo}).status == 400
    undo = orders.cancel(group="g", undo=True).undo
    assert guest.post("/do", {**fields, "undo": undo}).status == 303


def test_without_tokens_this_machine_may_do_everything(stage: Stage) -> None:
    orders = stage.queue("orders")
    orders.put(1)
    guest = stage.server(dashboard_hide=["card"])
    assert guest.get().status == 200
    assert guest.get(host="evil.example").status == 403
    pause = {"action": "pause", "queue": "orders", "on": "1", "back": "/dashboard/"}
    assert guest.post("/do", pause, origin="https://evil.example").status == 403
    assert guest.post("/do", pause).status == 303
    stage.token("read")
    stage.clock.advance(2)
    assert guest.get().status == 401


def test_forms_of_other_sites_do_not_log_in(stage: Stage) -> None:
    guest = stage.server(auth="required")
    fields = {"token": stage.token("read")}
    assert guest.post("/login", fields, sec_fetch_site="cross-site").status == 403
    assert guest.post("/logout", {}, origin="https://evil.example").status == 403


def test_a_link_of_another_site_is_asked_for_again_with_the_cookie(stage: Stage) -> None:
    guest = stage.server(auth="required")
    assert guest.get(sec_fetch_site="cross-site").headers["refresh"] == "0"
    assert "refresh" not in guest.get().headers


def test_the_api_is_beside_the_dashboard(stage: Stage) -> None:
    guest = stage.server(auth="required")
    assert guest.client.send("GET", "/healthz").status == 200
    assert guest.client.send("GET", "/dashboardx").status == 404
    assert guest.client.send("GET", "/dashboard").headers["location"] == "/dashboard/"


def test_the_store_may_be_behind_a_server(stage: Stage) -> None:
    orders = stage.queue("orders")
    orders.put(1, id="order-42", delay=60)
    port = stage.server().client.port
    access = Access(name="ann", actions=ACTIONS)
    app = Dashboard(f"http://127.0.0.1:{port}", lambda scope: access)
    stage.open.callback(app.store.close)
    visitor = Visitor(app)
    stage.open.callback(visitor.close)
    for page in ("/", "/queue?queue=orders", "/message?queue=orders&id=order-42", "/dead",
                 "/workers", "/periodic", "/audit", "/search?q=order-42"):  # fmt: skip
        assert visitor.get(page).status == 200
    assert "Subscriptions" not in visitor.get("/").text  # the server shows them
    assert visitor.do("cancel", queue="orders", id="order-42", confirmed="1").status == 303
    assert orders.get("order-42") is None


@pytest.mark.process
def test_all_processes_of_a_server_know_a_session(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.open:
        token = stage.token("read")
        server = ServerProcess(
            tmp_path, "--store", stage.url, "--dashboard", "--workers", "2", "--no-push"
        )
        try:
            app = App(Settings(store="memory://"))
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


def test_who_must_log_in_again_comes_back_to_the_page_of_the_form(stage: Stage) -> None:
    guest = stage.server(auth="required")
    page = "/dashboard/message?queue=orders&id=a%2Fb"
    form = {"action": "edit", "queue": "orders", "id": "a/b", "back": page}
    for referer, back in (
        (f"http://127.0.0.1:1{page}", page.replace("&", "&amp;")), ("http://[", "/dashboard/"),
        ("http://127.0.0.1:1/dashboard/do", "/dashboard/"),
    ):  # fmt: skip
        login = guest.post("/do", form, referer=referer)
        assert login.status == 401
        assert login.data.decode().count(f'name="back" value="{back}"') == 2
    # The page of a failed login is no page to come back to, either.
    again = guest.post("/login", {"token": "x"}, referer="http://127.0.0.1:1/dashboard/login")
    assert again.data.decode().count('name="back" value="/dashboard/"') == 2
