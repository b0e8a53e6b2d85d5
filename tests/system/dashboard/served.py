"""A server with the dashboard, and a browser without pages."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import bide
from bide.dashboard.served import dashboard_of
from bide.lane.shared import close_lane, open_lane
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing import FakeClock
from tests.system.server.client import Client, Reply
from tests.system.server.conftest import running

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


class Served:
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
        app = ServerApp(told, self.clock, pages=lambda service: dashboard_of(service, key))
        port = self.open.enter_context(running(app))
        return Guest(self.open.enter_context(Client(port, app)))

    def token(self, *rights: str, namespace: str | None = None, name: str = "ann") -> str:
        return self.tokens.create(namespace, rights, name=name)[0]

    def queue(self, name: str) -> bide.Queue:
        return self.open.enter_context(bide.Queue(name, self.url, clock=self.clock))
