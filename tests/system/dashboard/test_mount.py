"""The dashboard within an application of the user's."""

import re
import subprocess
import sys
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

import bide
from bide.dashboard import Access, asgi
from tests.system.dashboard.conftest import Visitor

URL = "memory://mounted"


def access(scope: object) -> Access | None:
    user = HTTPConnection(scope).headers.get("x-user")  # type: ignore[arg-type]
    return Access(name=user, actions=["pause"]) if user else None


def test_it_works_below_a_path_of_another_application() -> None:
    with bide.Queue("orders", URL) as orders:
        orders.put({"order": 42}, id="a/b", delay=60)
        app = Starlette(routes=[Mount("/admin/bide", asgi(URL, access=access))])
        stranger, ann = Visitor(app), Visitor(app, {"x-user": "ann"})
        assert stranger.get("/admin/bide/").status == 403
        page = ann.get("/admin/bide/")
        assert page.status == 200
        links = re.findall(r'(?:href|src|action|hx-get)="([^"]+)"', page.text)
        assert links
        assert all(link.startswith("/admin/bide/") or link == "#main" for link in links)
        assert ann.get("/admin/bide/static/style.css").status == 200
        assert "{" in ann.get("/admin/bide/message?queue=orders&id=a%2Fb").text
        fields = {
            "action": "pause",
            "queue": "orders",
            "on": "1",
            "back": "/admin/bide/queue?queue=orders",
        }
        done = ann.post("/admin/bide/do", fields)
        assert done.headers["location"] == "/admin/bide/queue?queue=orders&said=pause&count=1"
        assert orders.counts().paused
        stranger.close()
        ann.close()


def test_it_sends_the_browser_to_paths_that_are_not_ascii() -> None:
    app = Starlette(routes=[Mount("/队列", asgi(URL, access=access))])
    ann = Visitor(app, {"x-user": "ann"})
    chosen = ann.post("/队列/language", {"language": "zh"})
    assert chosen.headers["location"] == quote("/队列/")
    ann.close()


def test_without_its_extra_the_error_names_it() -> None:
    code = "import sys; sys.modules['jinja2'] = None; import bide.dashboard"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    ).stderr
    assert told.endswith("needs jinja2; install it with: pip install 'bide[dashboard]'\n")
