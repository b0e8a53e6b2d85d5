"""`tools/vulnerabilities` asks a real pip-audit; the service that this asks is one of the test."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[3] / "tools/vulnerabilities"


@contextmanager
def service(vulnerable: str = "") -> Iterator[str]:
    """Speak the protocol of https://osv.dev, and give the URL."""

    class Osv(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            package = asked["package"]
            told: dict[str, Any] = {}
            if package["name"] == vulnerable:
                span = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}
                affected = [{"package": package, "ranges": [span]}]
                told["vulns"] = [{"id": "GHSA-1", "details": "bad", "affected": affected}]
            data = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Osv)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(url: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(TOOL), url], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.full
def test_all_that_is_needed_is_checked() -> None:
    with service() as url:
        code, told, _ = run(url)
    assert (code, told.partition(" ")[2]) == (0, "packages have no known vulnerability\n")
    assert int(told.partition(" ")[0]) > 20


def test_a_known_vulnerability_fails_the_check() -> None:
    with service("httptools") as url:
        code, told, _ = run(url)
    assert code == 1
    assert told.startswith("httptools ")
    assert told.endswith(": GHSA-1, fixed in 99.0\n")


@pytest.mark.full
def test_no_answer_is_no_success() -> None:
    with service() as url:
        pass
    code, told, why = run(url)
    assert (code, told) == (1, "")
    assert why.startswith("nothing was checked: pip-audit failed")
