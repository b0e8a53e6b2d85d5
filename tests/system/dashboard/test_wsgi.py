"""The dashboard within a WSGI application of the user's."""

import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.simple_server import make_server as make_plain_server
from wsgiref.types import WSGIApplication, WSGIEnvironment
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from flask import Flask, session
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import make_server

import bide
from bide.dashboard import Access, wsgi
from bide.dashboard.wsgi_app import WsgiDashboard
from bide.model.limits import MAX_FORM
from bide.threads import deaths
from tests.system.dashboard.conftest import Reply

BOUND = 60.0
BASE = "/admin/bide"
ANN = Access(name="ann", actions=["pause"])
PAUSE = {"action": "pause", "queue": "orders", "on": "1", "back": "/"}


class Site:
    """A served application, as a browser meets it: with cookies, and without following links."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self._cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        connection = HTTPConnection("127.0.0.1", self._port, timeout=BOUND)
        try:
            connection.request(method, path, body or None, {"connection": "close", **sent})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        for cookie in response.headers.get_all("set-cookie", []):
            name, _, value = cookie.partition(";")[0].partition("=")
            self._cookies[name] = value
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, text)

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, path: str, fields: Any, **headers: str) -> Reply:
        form = {"content_type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, urlencode(fields).encode(), **form, **headers)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *message: Any) -> None:
        pass


@contextmanager
def served(server: Any) -> Iterator[Site]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Site(server.server_port)
    finally:
        server.shutdown()
        thread.join(BOUND)
        server.server_close()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db") as queue:
        queue.put({"order": 42, "card": "4711"}, id="a/b", delay=60)
        yield queue


@pytest.fixture
def dashboard(orders: bide.Queue) -> Iterator[WsgiDashboard]:
    dashboard = wsgi(orders.url, access=lambda environ: ANN)
    yield dashboard
    dashboard.close()


def flask_with(url: str, log: Path) -> tuple[Flask, WsgiDashboard]:
    """Return an application whose session says who may see the dashboard."""
    app = Flask("shop")
    app.secret_key = "of a test"

    @app.post("/login/<name>")
    def login(name: str) -> str:
        session["user"] = name
        return "hello"

    def access(environ: WSGIEnvironment) -> Access | None:
        with app.request_context(environ):
            return ANN if session.get("user") == "ann" else None

    dashboard = wsgi(url, access=access, hide=["card"], action_log=str(log))
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {BASE: dashboard})  # type: ignore[method-assign]
    return app, dashboard


def test_flask_mounts_it_and_its_session_decides(orders: bide.Queue, tmp_path: Path) -> None:
    app, dashboard = flask_with(orders.url, tmp_path / "actions.log")
    with served(make_server("127.0.0.1", 0, app, threaded=True)) as site:
        assert site.get(f"{BASE}/").status == 403
        assert "orders" not in site.get(f"{BASE}/").text
        assert site.post("/login/ann", {}).text == "hello"
        assert site.get(BASE).headers["location"] == f"{BASE}/"
        page = site.get(f"{BASE}/")
        assert page.status == 200
        assert "orders" in page.text
        assert "frame-ancestors" in page.headers["content-security-policy"]
        links = re.findall(r'(?:href|src|action|hx-get)="([^"]+)"', page.text)
        assert links
        assert all(link.startswith(f"{BASE}/") or link == "#main" for link in links)
        assert site.get(f"{BASE}/static/style.css").headers["content-type"].startswith("text/css")
        message = site.get(f"{BASE}/message?queue=orders&id=a%2Fb").text
        assert "42" in message
        # Versions are hexadecimal, and may have its digits.
        assert re.search("(?<![0-9a-f])4711(?![0-9a-f])", message) is None
        done = site.post(f"{BASE}/do", {**PAUSE, "back": f"{BASE}/queue?queue=orders"})
        assert done.status == 303
        assert done.headers["location"] == f"{BASE}/queue?queue=orders&said=pause&count=1"
        assert orders.counts().paused
        assert site.post(f"{BASE}/language", {"language": "zh"}).status == 303
        assert 'lang="zh-Hans"' in site.get(f"{BASE}/").text
    dashboard.close()
    lines = [json.loads(line) for line in (tmp_path / "actions.log").read_text().splitlines()]
    assert [line["act"] for line in lines] == ["show", "pause"]
    assert {(line["who"], line["client"]) for line in lines} == {("ann", "127.0.0.1")}


def test_it_keeps_the_rules_of_wsgi(dashboard: WsgiDashboard, orders: bide.Queue) -> None:
    app: Any = validator(dashboard)
    with served(make_plain_server("127.0.0.1", 0, app, handler_class=_Quiet)) as site:
        whole = site.get("/")
        assert whole.status == 200
        head = site.ask("HEAD", "/queue?queue=orders")
        assert (head.status, head.text) == (200, "")
        assert int(head.headers["content-length"]) > 1_000
        assert site.get("/%E6%97%A5%FF").status == 404
        assert site.ask("PUT", "/do").status == 405
        assert site.post("/do", PAUSE).status == 303
    assert orders.counts().paused


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_forms_of_other_sites_are_refused(
    dashboard: WsgiDashboard, orders: bide.Queue, headers: dict[str, str]
) -> None:
    with served(make_server("127.0.0.1", 0, dashboard, threaded=True)) as site:
        assert site.post("/do", PAUSE, **headers).status == 403
        assert not orders.counts().paused


def test_threads_share_it(dashboard: WsgiDashboard) -> None:
    paths = ["/", "/queue?queue=orders", "/dead", "/workers"] * 4
    before = _threads()
    with served(make_server("127.0.0.1", 0, dashboard, threaded=True)) as site:
        with ThreadPoolExecutor(8) as browsers:
            assert {page.status for page in browsers.map(site.get, paths)} == {200}
        assert _threads() == before + 1
    dashboard.close()
    assert _threads() == before


def _threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("bide-dashboard")


def ask(app: WSGIApplication, method: str, path: str, body: bytes = b"", **more: Any) -> int:
    """Return the status of the answer to a request that a server hands over like this."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "wsgi.input": BytesIO(body),
        **more,
    }
    setup_testing_defaults(environ)
    told: list[str] = []

    def start(status: str, *_: Any) -> Any:
        told.append(status)

    answer: Any = validator(app)(environ, start)
    list(answer)
    answer.close()
    return int(told[0].split()[0])


FORM = urlencode(PAUSE).encode()


@pytest.mark.parametrize(
    ("status", "body", "more"),
    [
        (413, b"", {"CONTENT_LENGTH": str(MAX_FORM + 1)}),
        (413, FORM.ljust(MAX_FORM + 1, b"&"), {"wsgi.input_terminated": True}),
        (400, FORM, {"CONTENT_LENGTH": str(len(FORM) + 1)}),
        (303, FORM + b"left over", {"CONTENT_LENGTH": str(len(FORM))}),
        (303, FORM, {"wsgi.input_terminated": True}),
    ],
    ids=["too large", "too large in chunks", "cut short", "whole", "in chunks"],
)
def test_bodies_are_read_whole_and_bounded(
    dashboard: WsgiDashboard, orders: bide.Queue, status: int, body: bytes, more: dict[str, Any]
) -> None:
    assert ask(dashboard, "POST", "/do", body, **more) == status
    assert orders.counts().paused == (status == 303)


def test_it_opens_the_store_again_after_it_was_closed(dashboard: WsgiDashboard) -> None:
    assert ask(dashboard, "GET", "/") == 200
    dashboard.close()
    dashboard.close()
    assert ask(dashboard, "GET", "/") == 200


def test_it_answers_after_its_thread_has_died(dashboard: WsgiDashboard) -> None:
    assert ask(dashboard, "GET", "/") == 200
    died = deaths["bide-dashboard"]
    dashboard._running_here().loop.call_soon_threadsafe(exec, "raise SystemExit(1)")
    assert ask(dashboard, "GET", "/") == 200
    assert deaths["bide-dashboard"] == died + 1


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_fork_has_a_thread_of_its_own(dashboard: WsgiDashboard) -> None:
    assert ask(dashboard, "GET", "/") == 200
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = ask(dashboard, "GET", "/queue", QUERY_STRING="queue=orders") == 200
            dashboard.close()
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(dashboard, "GET", "/") == 200


def test_a_wrong_store_or_log_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(bide.InvalidArgument, match="names no store"):
        wsgi("nonsense://", access=lambda environ: ANN)
    with pytest.raises(bide.InvalidArgument, match="cannot be opened"):
        wsgi("memory://", access=lambda environ: ANN, action_log=str(tmp_path / "no" / "log"))
