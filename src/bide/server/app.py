"""The application: routes made of the operations, and what is the same for every request."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bide.model.errors import BideError
from bide.observing.heartbeat import may_be_listed
from bide.server.accesslog import log_request
from bide.server.cross_site import refuse_pages
from bide.server.figures import Board
from bide.server.operation import Call, Operation, Scope, Send, send_whole
from bide.server.problem import Problem, as_json, of_bide
from bide.server.receiving import Gone, Receive
from bide.server.routes import OPERATIONS
from bide.server.service import Service, SettableClock
from bide.server.settings import Settings
from bide.server.uses import Uses

__all__ = ["App", "create_app"]

_log = logging.getLogger("bide.server")


class Path:
    """All operations of one path.

    Args:
        service: who answers.
        operations: one a method.
    """

    def __init__(self, service: Service, operations: list[Operation]) -> None:
        self._service = service
        self._by_method = {operation.method: operation for operation in operations}
        if "GET" in self._by_method:
            self._by_method["HEAD"] = self._by_method["GET"]
        self._allow = ", ".join(sorted(self._by_method))
        parts = enumerate(operations[0].path.split("/"))
        self._named = [(part[1:-1], at) for at, part in parts if part.startswith("{")]
        """Which parts of the path are names, and of what."""

    async def answer(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Answer a request.

        Args:
            scope: what ASGI says of it.
            path: its path as it came.
            receive: from where its body comes.
            send: where the answer goes.
        """
        began = time.perf_counter()
        method: str = scope["method"]
        operation = self._by_method.get(method)
        if operation is None:
            problem = Problem(
                "method-not-allowed", f"{method} cannot be done here; {self._allow} can",
                headers={"allow": self._allow},
            )  # fmt: skip
            await refuse_unrouted(scope, path, send, problem)
            return
        parts = path.split("/")
        named = {name: parts[at] for name, at in self._named}
        call = Call(self._service, operation, scope, path, named, receive, send)
        status = 0
        try:
            await self._admit(call)
            answer = await operation.handle(call)
            if answer is not None:
                await call.answer(answer)
                status = answer.status
            else:
                status = 200
        except Gone:
            status = 499  # nobody is there to hear it; the log says so as nginx does
        except Problem as problem:
            status = await _refuse(call, problem)
        except BideError as error:
            status = await _refuse(call, of_bide(error))
        except Exception:  # noqa: BLE001  (it is logged, and nobody else's request suffers)
            status = 500
            _log.exception("%s %s failed", method, operation.path)
            text = "the server made a mistake; its log tells more. Please report it"
            await _refuse(call, Problem("internal", text))
        finally:
            took = self._service.note(operation.name, status, began)
            client = scope.get("client")
            log_request(
                method, path, status, took, operation.name, client[0] if client else "",
                call.caller.namespace, call.caller.token,
            )  # fmt: skip

    async def _admit(self, call: Call) -> None:
        """Find out who asks, and refuse what they may not do."""
        admission, needed = self._service.admission, call.operation.scope
        if needed is not None:
            token = call.token
            if token is not None or not admission.is_open:
                call.caller = await admission.caller(token)
            if needed and not call.caller.may(needed):
                raise Problem(
                    "forbidden",
                    f"the token has no scope {needed!r}, which this needs; bide token create "
                    f"--scope {needed} makes one that has",
                )
        if not admission.asks:
            refuse_pages(call)


async def _refuse(call: Call, problem: Problem) -> int:
    status, data, headers = as_json(problem)
    if call.streams:  # its status was told at its beginning: what is left is to end it
        await call.send({"type": "http.response.body"})
    else:
        await send_whole(call.send, status, data, headers)
    return status


class App:
    """The ASGI application, and the service behind it.

    Args:
        settings: what the server is told.
        test_clock: by which the store goes instead of its own; see `bide.testing.FakeClock`.
        ready: called once requests can be answered.
        uses: what namespaces have used, shared with the other processes of the server.
        board: what each of these has done, shared by them as well.
    """

    def __init__(
        self,
        settings: Settings,
        test_clock: SettableClock | None = None,
        ready: Callable[[], None] = lambda: None,
        uses: Uses | None = None,
        board: Board | None = None,
    ) -> None:
        self.service = Service(settings, test_clock, uses, board)
        self._ready = ready
        by_path: dict[str, list[Operation]] = {}
        for operation in OPERATIONS:
            by_path.setdefault(operation.path, []).append(operation)
        self._paths = {_shape(path): Path(self.service, found) for path, found in by_path.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the store and push, for as long as requests are answered.

        Raises:
            StoreError: the store cannot be opened.
            InvalidArgument: the server can be reached from elsewhere, and there are no tokens.
        """
        await self.service.begin()
        self.service.pushing.begin()
        self._ready()
        attendance = self.service.attendance() if may_be_listed(self.service.lane) else None
        keeping = asyncio.create_task(attendance.keep()) if attendance is not None else None
        try:
            yield
        finally:
            self.service.stop()
            if attendance is not None and keeping is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                await attendance.leave()
            await self.service.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; ASGI calls this."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"bide serves HTTP alone, and this is {scope['type']!r}")
        # The path as it came: an id may have an encoded slash in it.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        if (found := self._paths.get(_shape(path))) is not None:
            await found.answer(scope, path, receive, send)
            return
        problem = Problem("not-found", "there is nothing at this path; /docs tells what there is")
        await refuse_unrouted(scope, path, send, problem)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Open and close the store for an ASGI server that is not bide's own."""
        await receive()
        try:
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except BideError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
        else:
            await send({"type": "lifespan.shutdown.complete"})


async def refuse_unrouted(scope: Scope, path: str, send: Send, problem: Problem) -> None:
    """Answer a request that no operation takes, and log it."""
    client = scope.get("client")
    address = client[0] if client else ""
    log_request(scope["method"], path, problem.kind.status, 0.0, "", address, None, None)
    await send_whole(send, *as_json(problem))


_NAMED = (3, 5)
"""Which parts of a path are names. They stand at the same place in all paths, so that a request
finds its operations in a dictionary and not by trying one expression after the other."""


def _shape(path: str) -> tuple[str, ...]:
    """Return a path without its names.

    Example:
        >>> _shape("/v1/queues/orders/messages/42/body")
        ('', 'v1', 'queues', '', 'messages', '', 'body')
    """
    parts = path.split("/")
    for at in _NAMED:
        if at < len(parts) and parts[at]:
            parts[at] = ""
        elif at < len(parts):
            parts[at] = "/"  # nothing stands where a name should
    return tuple(parts)


def create_app(settings: Settings | None = None) -> App:
    """Return the service as an ASGI application, for a server of your own.

    Args:
        settings: what it is told; the defaults otherwise.

    Raises:
        InvalidArgument: the settings cannot work together.
    """
    return App(settings or Settings())
