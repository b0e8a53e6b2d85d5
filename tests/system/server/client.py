"""A client for tests: requests as other languages send them."""

import http.client
import json
from types import TracebackType
from typing import Any, NamedTuple, Self

from bide.server.app import ServerApp

Q = "/v1/queues/orders"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def problem(self) -> Any:
        assert self.headers["content-type"] == "application/problem+json"
        found = self.json
        assert found["status"] == self.status
        assert found["type"].startswith("/docs#problem-")
        assert found["title"]
        assert found["detail"]
        return found


class Client:
    """Sends requests to a server of this machine, one after the other."""

    def __init__(self, port: int, app: ServerApp, token: str | None = None) -> None:
        self.port = port
        self.app = app
        self.token = token
        self.url = f"http://127.0.0.1:{port}"
        self._others: list[Client] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def with_token(self, token: str) -> "Client":
        other = Client(self.port, self.app, token)
        self._others.append(other)
        return other

    def send(
        self, method: str, path: str, content: Any = None, data: bytes | None = None, **headers: Any
    ) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None:
            data = json.dumps(content).encode()
        if data is not None:
            sent.setdefault("content-type", "application/json")
        if self.token is not None:
            sent["authorization"] = f"Bearer {self.token}"
        self._connection.request(method, path, data, sent)
        reply = self._connection.getresponse()
        fields = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, fields, reply.read())

    def get(self, path: str, **headers: Any) -> Reply:
        return self.send("GET", path, **headers)

    def post(self, path: str, content: Any = None, **headers: Any) -> Reply:
        return self.send("POST", path, content, **headers)

    def put(self, path: str, content: Any = None, **headers: Any) -> Reply:
        return self.send("PUT", path, content, **headers)

    def close(self) -> None:
        for client in self._others:
            client.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
