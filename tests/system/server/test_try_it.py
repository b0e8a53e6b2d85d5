"""The forms of the page at /docs: in Chromium, against a real server."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection, HTTPResponse
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from starlette.applications import Starlette
from starlette.routing import Mount

from bide.server.app import ServerApp, create_app
from bide.server.openapi import Description, texts
from bide.server.routes import OPERATIONS
from bide.server.settings import Settings
from tests.system.contrib.serving import serving
from tests.system.dashboard.chromium import chromium, look_like
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve, running

BOUND = 60.0

AXE = files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")


def test_each_example_is_of_an_operation() -> None:
    assert set(texts()["bodies"]) <= {one.name for one in OPERATIONS if one.takes is not None}


def test_each_example_is_understood(client: Client) -> None:
    operations = [
        (path, method, operation)
        for path, methods in Description(OPERATIONS).document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(operations) == len([one for one in OPERATIONS if one.takes is not None])
    for number, (path, method, operation) in enumerate(operations):
        path = path.replace("{queue}", f"orders{number}")  # which is empty
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        query = "?group=customer:7" if operation["operationId"] == "rescheduleWhere" else ""
        example = operation["requestBody"]["content"]["application/json"]["example"]
        if operation["operationId"] == "claim":
            example = {**example, "wait": 0}
        reply = client.send(method.upper(), path + query, example)
        assert reply.status in (200, 201, 404, 409), (path, reply.data)


def test_a_page_of_another_site_cannot_show_this_one(client: Client) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[str]:
    """Provide the URL of a server that is mounted in an application."""
    api: Any = create_app(Settings(store=f"sqlite:///{tmp_path}/bide.db", push=False))

    @asynccontextmanager
    async def lifespan(outer: Starlette) -> AsyncIterator[None]:
        async with api.running():
            yield

    with serving(Starlette(routes=[Mount("/a queue", api)], lifespan=lifespan)) as site:
        yield f"http://127.0.0.1:{site.port}/a%20queue"


def test_it_answers_where_it_is_mounted(mounted: str) -> None:
    base = urlsplit(mounted)
    with closing(HTTPConnection(base.netloc, timeout=BOUND)) as connection:

        def ask(method: str, path: str, body: bytes | None = None) -> HTTPResponse:
            connection.request(method, path, body, {"content-type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            return reply

        assert ask("GET", f"{base.path}/other").status == 404
        put = ask("POST", f"{base.path}{Q}/messages", b'{"body": 1}')
        assert put.status == 201
        assert ask("GET", put.headers["location"]).status == 200


class Page:
    """The page in a browser."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def open(self, url: str, operation: str) -> None:
        self.browser.get(f"{url}/docs")
        self.form = f"#{operation} form"
        self.one(f"#{operation} summary").send_keys(Keys.ENTER)

    def one(self, selector: str) -> Any:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def fill(self, field: str, text: str) -> None:
        found = self.one(f"{self.form} [name={field}]")
        found.clear()
        found.send_keys(text)

    def send(self) -> None:
        self.one(f"{self.form} [type=submit]").click()

    def said(self, part: str) -> str:
        return str(self.one(f"{self.form} .{part}").text)

    def until(self, text: str, part: str = "status") -> None:
        wait = WebDriverWait(self.browser, BOUND, 0.05, [WebDriverException])
        wait.until(lambda _: text in self.said(part), f"{text!r} is not said")

    def complaints(self) -> list[str]:
        """Return what the browser says of the policy and the script."""
        log: list[dict[str, Any]] = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        signs = ("Content Security Policy", "Uncaught", "SyntaxError")
        return [m for one in log if any(sign in (m := one["message"]) for sign in signs)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        look_like(browser)
        yield Page(browser)


@pytest.mark.process
class TestInABrowser:
    def test_a_message_is_put_and_read(self, page: Page, client: Client) -> None:
        page.open(client.url, "putNamed")
        page.fill("id", "été/7")
        page.send()
        page.until("201 Created")
        assert '"id": "été/7"' in page.said("body")
        assert "location: /v1/queues/orders/messages/%C3%A9t%C3%A9%2F7" in page.said("headers")
        assert client.get(f"{Q}/messages/%C3%A9t%C3%A9%2F7").json["body"] == {"order": 42}
        page.open(client.url, "search")
        page.fill("body", "42")
        page.send()
        page.until("200 OK")
        assert "été/7" in page.said("body")
        assert page.complaints() == []

    @pytest.mark.full
    def test_bytes_are_put(self, page: Page, client: Client) -> None:
        page.open(client.url, "putNamed")
        page.fill("content-type", "text/csv")
        page.fill("body", "a;b")
        page.send()
        page.until("201 Created")
        assert client.get(f"{Q}/messages/order-42/body").data == b"a;b"

    @pytest.mark.full
    def test_an_error_is_shown(self, page: Page, client: Client) -> None:
        page.open(client.url, "put")
        page.fill("body", '{"body": 1, "priority": 256}')
        page.send()
        page.until("400 Bad Request")
        assert "<= 255" in page.said("body")

    def test_numbers_are_shown_as_they_came(self, page: Page, client: Client) -> None:
        client.put(f"{Q}/messages/order-42", {"body": 12345678901234567890})
        page.open(client.url, "getBody")
        page.send()
        page.until("200 OK")
        page.until("12345678901234567890", "body")

    @pytest.mark.full
    def test_an_answer_without_end_is_stopped(self, page: Page, client: Client) -> None:
        page.open(client.url, "events")
        page.send()
        page.until("200 OK")  # the stream has begun: it tells of what is put from now on
        client.put(f"{Q}/messages/order-42", {"body": 1})
        page.until("event: hint", "body")
        page.one(f"{page.form} .stop").click()
        page.until("Stopped.")
        assert page.one(f"{page.form} [type=submit]").is_enabled()

    def test_a_server_that_is_gone(self, page: Page, tmp_path: Path) -> None:
        app = ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db"))
        with running(app) as port:
            page.open(f"http://127.0.0.1:{port}", "about")
        page.send()
        page.until("Failed: ")

    def test_the_token_stays_in_this_tab(
        self, page: Page, serve: Serve, make_token: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "bide.access")
        token = make_token(None, "read")
        client = serve(auth="required")
        page.open(client.url, "listQueues")
        page.send()
        page.until("401 Unauthorized")
        page.one("#token").send_keys(token)
        page.send()
        page.until("200 OK")
        assert '-H "authorization: Bearer $BIDE_TOKEN"' in page.said("curl")
        assert token not in page.browser.page_source
        assert token not in page.browser.current_url
        assert token not in caplog.text
        stored = "return [localStorage.length, document.cookie, sessionStorage.length]"
        assert page.browser.execute_script(stored) == [0, "", 1]
        page.open(client.url, "listQueues")  # it is still there, and not in what needs none
        page.send()
        page.until("200 OK")
        assert "BIDE_TOKEN" not in str(page.one("#healthz .curl").get_property("textContent"))
        page.one("#forget").click()
        assert page.browser.execute_script(stored) == [0, "", 0]
        page.send()
        page.until("401 Unauthorized")

    def test_it_works_below_a_path(self, page: Page, mounted: str) -> None:
        page.open(mounted, "put")
        page.send()
        page.until("201 Created")
        assert f"{mounted}{Q}/messages'" in page.said("curl")
        assert page.complaints() == []

    def test_curl_says_the_same(self, page: Page, client: Client) -> None:
        page.open(client.url, "putNamed")
        page.fill("group", "it's $HOME")
        page.fill("body", '{"body": "it\'s"}')
        assert page.said("curl").replace(client.url, "URL") == (
            "curl -i -X PUT 'URL/v1/queues/orders/messages/order-42?group=it%27s+%24HOME' \\\n"
            "  -H 'content-type: application/json' \\\n"
            "  --data-raw '{\"body\": \"it'\\''s\"}'"
        )

    @pytest.mark.full
    def test_everyone_can_use_it(self, page: Page, client: Client) -> None:
        page.open(client.url, "putNamed")
        page.send()
        page.until("201 Created")
        page.browser.execute_script("document.getElementById('schema-Given').open = true")
        page.browser.execute_script(AXE)
        for scheme, rules in (("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")):
            look_like(page.browser, scheme=scheme)
            found = page.browser.execute_async_script(
                "axe.run({exclude: [['details:not([open])']]}, "
                f"{rules}).then(found => arguments[arguments.length - 1](found.violations"
                ".map(one => one.id + ': ' + one.nodes.slice(0, 3).map(n => n.html).join(' '))))"
            )
            assert found == []
        look_like(page.browser, width=390)
        # not compared with innerWidth: a phone zooms out until it shows what overflows
        needed = page.browser.execute_script("return document.documentElement.scrollWidth")
        look_like(page.browser)
        assert needed <= 390
