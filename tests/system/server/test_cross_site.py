"""A server without tokens does nothing for web pages of other sites."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.effort import one_in
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.raw import exchange, request, status_of

PURGE = b'{"state":"delayed"}'


@pytest.fixture(params=["its own store", "a relay"])
def target(request: Any, serve: Serve) -> Client:
    """Provide a client of a server without tokens that holds one delayed message."""
    client = serve()
    if request.param == "a relay":
        client = serve(store=client.url)
    assert client.put(f"{Q}/messages/m", {"body": 1, "delay": "1h"}).status == 201
    return client


def is_there(client: Client) -> bool:
    return client.get(f"{Q}/messages/m").status == 200


ORIGINS = [
    "null",
    "file://",
    "file:///tmp/page.html",
    "file://localhost",
    "data:",
    "data:text/html,x",
    "about:blank",
    "https://evil.example",
    "http://localhost.evil.example",
    "http://",
    "localhost",
    "http://localhost@evil.example",
    "http://127.0.0.1.evil.example",
    "chrome-extension://abcdef",
    "http://[::1",
    "http://[::ffff:1.2.3.4]",
    "http://10.0.0.1",
]


def test_an_origin_without_a_local_host_is_refused(target: Client) -> None:
    for origin in ORIGINS:
        for headers in ({"origin": origin}, {"origin": origin, "content_type": ""}):
            answer = exchange(target.port, request("POST", f"{Q}/purge", PURGE, **headers))
            assert status_of(answer) == 403, origin
            assert b'"field":"origin"' in answer
    assert is_there(target)


def test_a_page_of_this_machine_is_served(target: Client) -> None:
    for origin in ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:8"):
        assert status_of(exchange(target.port, request("GET", Q, origin=origin))) == 200


def test_what_a_browser_says_of_the_page_is_believed(target: Client) -> None:
    for site, status in (("cross-site", 403), ("same-site", 200), ("same-origin", 200)):
        assert status_of(exchange(target.port, request("GET", Q, sec_fetch_site=site))) == status


SIMPLE = (
    "",
    "text/plain",
    "text/plain;charset=UTF-8",
    "TEXT/PLAIN",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{Q}/purge", PURGE),
        ("POST", f"{Q}/messages", b'{"body": 1}'),
        ("POST", f"{Q}/claim", b'{"count": 1}'),
        ("POST", "/v1/batch", b'{"commands": [{"command": "drop", "queue": "orders"}]}'),
        ("PUT", "/v1/subscriptions/x", b'{"queue": "orders", "url": "https://evil.example"}'),
        ("DELETE", f"{Q}/messages/m", b"x"),
    ],
)
def test_a_body_that_needs_no_preflight_is_refused(
    client: Client, method: str, path: str, body: bytes
) -> None:
    assert client.put(f"{Q}/messages/m", {"body": 1, "delay": "1h"}).status == 201
    for kind in SIMPLE:
        whole = request(method, path, body, content_type=kind)
        head, _, _ = whole.partition(b"\r\n\r\n")
        chunked = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
        for data in (whole, b"%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (chunked, len(body), body)):
            answer = exchange(client.port, data)
            assert status_of(answer) in (400, 415), kind
            assert b'"field":"content-type"' in answer
    assert is_there(client)
    assert client.get(Q).json["sizes"]["delayed"] == 1


def test_bytes_of_a_type_that_needs_a_preflight_are_stored(target: Client) -> None:
    data = request("POST", f"{Q}/messages", b"raw", content_type="image/png")
    assert status_of(exchange(target.port, data)) == 201


def test_where_tokens_are_asked_for_pages_may_use_them(serve: Serve, make_token: Any) -> None:
    client = serve(auth="required").with_token(make_token("shop", "admin"))
    page = {"origin": "https://app.example", "sec_fetch_site": "cross-site"}
    assert client.put(f"{Q}/messages/m", {"body": 1}, **page).status == 201
    assert client.send("POST", f"{Q}/messages", data=b"1", content_type="text/plain").status == 201


# Pages in a browser. Each tries all the ways that a page has to send a request, and then says so.

ATTACK = """
<!doctype html><title>working</title><iframe name=hidden></iframe>
<form id=form method=post target=hidden enctype=text/plain action="{url}">
<input name='{{"state":"delayed","before":null,"x":"' value='"}}'></form>
<script>
const body = '{{"state":"delayed"}}', tries = [
  () => fetch("{url}", {{method: "POST", body, mode: "no-cors"}}),
  () => fetch("{url}", {{method: "POST", body: new Blob([body]), mode: "no-cors"}}),
  () => fetch("{url}", {{method: "POST", body, headers: {{"content-type": "application/json"}}}}),
  () => navigator.sendBeacon("{url}", new Blob([body])),
  () => document.getElementById("form").submit(),
];
(async () => {{
  for (const attempt of tries) {{ try {{ await attempt() }} catch (error) {{ }} }}
  const done = () => parent === window ? document.title = "done" : parent.postMessage("done", "*");
  setTimeout(done, 500);
}})();
</script>
"""

FRAME = """<!doctype html><title>working</title>
<script>onmessage = event => document.title = event.data</script>
<iframe sandbox="allow-scripts allow-forms" srcdoc="{page}"></iframe>
"""


@contextmanager
def site(folder: Path) -> Iterator[str]:
    """Serve a folder as a site of its own."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        f"user-data-dir={tmp_path}/browser",
    ):
        options.add_argument(f"--{flag}")
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.mark.process
@pytest.mark.parametrize("target", one_in(2, ["its own store", "a relay"]), indirect=True)
def test_pages_in_a_browser_cannot_purge(
    target: Client, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    page = ATTACK.format(url=f"{target.url}{Q}/purge")
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "page.html").write_text(page)
    frame = FRAME.format(page=page.replace("&", "&amp;").replace('"', "&quot;"))
    (pages / "frame.html").write_text(frame)
    with site(pages) as evil:
        for url in (
            f"file://{pages}/page.html",
            f"file://{pages}/frame.html",
            f"{evil}/frame.html",
        ):
            browser.get(url)
            WebDriverWait(browser, 60).until(lambda driver: driver.title == "done")
            assert is_there(target), f"{url} has purged the queue"
    browser.get(f"{target.url}/docs")
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("bide")
