"""The ASGI application: routes, access, answers to errors, and logs for every request."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import quote, unquote

from bide.clock import SYSTEM_CLOCK, Clock
from bide.logs import logger
from bide.model.errors import BideError
from bide.model.limits import MAX_URL
from bide.server.access.admission import refuse_pages
from bide.server.access.rights import OPEN
from bide.server.call import Call, Scope, Send, completing, send_whole, visit_of
from bide.server.limits.gate import REQUEST, Visit, new_request_id
from bide.server.limits.request_bodies import ClientGone, Receive
from bide.server.logs import DONE, Act, count_of, log_request
from bide.server.operation import Answer, Operation
from bide.server.problem import Problem, as_json, of_bide
from bide.server.routes import OPERATIONS
from bide.server.service import Service
from bide.server.settings import Settings
from bide.server.shared_state import SharedState
from bide.tasks import background

_log = logger("bide.server")


async def answer(
    service: Service,
    operations: Mapping[str, Operation],
    scope: Scope,
    path: str,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a request.

    Args:
        service: the service that answers.
        operations: the operations of the path, by method.
        scope: the ASGI scope of the request.
        path: its path, not decoded.
        receive: returns the parts of its body.
        send: sends the parts of the answer.
    """
    began = time.perf_counter()
    method: str = scope["method"]
    operation = operations.get("GET" if method == "HEAD" else method)
    if operation is None:
        allowed = ", ".join(sorted({*operations, *(("HEAD",) if "GET" in operations else ())}))
        problem = Problem(
            "method-not-allowed",
            f"{method} is not allowed here; use {allowed}",
            headers={"allow": allowed},
        )
        await refuse_unrouted(service, scope, path, send, problem)
        return
    parts = zip(operation.path.split("/"), path.split("/"), strict=True)
    named = {name[1:-1]: part for name, part in parts if name.startswith("{")}
    call = Call(service, operation, scope, named, receive, send)
    status, result, content = 0, "ended", None
    try:
        await _admit(call)
        returned = await operation.handle(call, **await call.parameters())
        if returned is not None:
            reply = returned if isinstance(returned, Answer) else Answer(200, returned)
            await call.answer(reply)
            status, content = reply.status, reply.content
        else:
            status = 200
        result = DONE
    except ClientGone:
        status, result = 499, "client-gone"  # as nginx logs it
    except Problem as problem:
        status, result = await _refuse(call, problem)
    except BideError as error:
        status, result = await _refuse(call, of_bide(error, service.client_text.of(error)))
    except Exception:  # noqa: BLE001  (it is logged, and other requests continue)
        _log.exception("%s %s failed", method, operation.path)
        text = "an internal error of the server; please report it with the traceback in its log"
        status, result = await _refuse(call, Problem("internal", text))
    finally:
        call.over()
        took = service.note(operation.name, status, began)
        caller, client = call.caller, call.client
        request = call.visit.request
        log_request(
            method,
            path,
            status,
            took,
            operation=operation.name,
            client=client,
            caller=caller,
            request=request,
        )
        if service.action_log.is_on and operation.right is not None:
            acts = [a if result == DONE else Act(a.act, a.queue, 0, result) for a in call.acts]
            if not acts:
                queue, name = (unquote(named[n]) if n in named else None for n in _NAMES)
                acts = [Act(operation.name, queue, count_of(content), result, name)]
            who, token = caller.name or caller.token or "", caller.token or ""
            service.action_log.write(
                acts,
                who=who,
                token=token,
                client=client,
                namespace=caller.namespace,
                request=request,
            )


async def _admit(call: Call) -> None:
    """Authenticate the caller, and refuse what it has no right to."""
    admission, needed = call.service.admission, call.operation.right
    if needed is not None:
        call.visit.caller = await admission.caller(call.token, call.client)
        if needed:
            call.caller.need(needed)
        call.visit.admit()
    if not admission.asks:
        refuse_pages(call)


async def _refuse(call: Call, problem: Problem) -> tuple[int, str]:
    """Send a problem; return its status and name."""
    status, data, headers = as_json(problem)
    if call.streams:  # the status was sent already: only the end can be sent
        await call.send({"type": "http.response.body"})
    else:
        await send_whole(call.send, status, data, {**headers, **call.mark})
    return status, problem.kind.name


class Pages(Protocol):
    """The dashboard."""

    async def answer(self, scope: Scope, receive: Receive, visit: Visit) -> Answer | None:
        """Answer a request; `root_path` is the path of the pages. `None`: the client has gone."""

    async def close(self) -> None:
        """Close the store."""


DASHBOARD = "/dashboard"
"""The path of the pages."""


class ServerApp:
    """The ASGI application, and the service behind it.

    Args:
        settings: the settings of the server.
        clock: the clock of the store; see `bide.testing.FakeClock`.
        ready: called once requests can be answered.
        shared: the state that the processes of the server share.
        pages: makes the application that answers below /dashboard.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock = SYSTEM_CLOCK,
        ready: Callable[[], None] = lambda: None,
        shared: SharedState | None = None,
        pages: "Callable[[Service], Pages] | None" = None,
    ) -> None:
        self.service = Service(settings, clock, shared)
        self._pages = None if pages is None else pages(self.service)
        self._ready = ready
        self._paths: dict[tuple[str, ...], dict[str, Operation]] = {}
        for operation in OPERATIONS:
            self._paths.setdefault(_shape(operation.path), {})[operation.method] = operation

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the store and push while the block runs.

        Raises:
            StoreError: the store cannot be opened.
            InvalidArgument: other machines can reach the server, and there are no tokens.
        """
        service = self.service
        await service.begin()
        service.pushing.begin()
        self._ready()
        keeping = [background("bide-tokens", service.keep_tokens)]
        if service.lane.capabilities.shared:
            keeping.append(background("bide-heartbeat", service.heartbeat().keep))
        try:
            yield
        finally:
            service.stop()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            if self._pages is not None:
                await self._pages.close()
            await service.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; ASGI calls this."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"bide serves only HTTP, not {scope['type']!r}")
        request = new_request_id()
        scope = {**scope, "extensions": {**(scope.get("extensions") or {}), REQUEST: request}}
        send = completing(send, request)
        # Not decoded: an id may contain an encoded slash.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        if root := scope.get("root_path"):  # the path at which the application is mounted
            path = path.removeprefix(quote(root))
        if len(path) + len(scope["query_string"]) > MAX_URL:
            long = Problem("malformed", f"the URL is longer than {MAX_URL:,} bytes")
            await refuse_unrouted(self.service, scope, path, send, long)
            return
        is_page = f"{path}/".startswith(f"{DASHBOARD}/")
        if (operations := self._paths.get(_shape(path))) is not None:
            await answer(self.service, operations, scope, path, receive, send)
        elif self._pages is not None and is_page:
            await self._show(self._pages, scope, path, receive, send)
        else:
            detail = "there is nothing at this path; /docs lists the operations"
            if self._pages is None and (is_page or path == "/"):
                detail += "; the dashboard is off: bide serve --dashboard"
            await refuse_unrouted(self.service, scope, path, send, Problem("not-found", detail))

    async def _show(
        self, pages: "Pages", scope: Scope, path: str, receive: Receive, send: Send
    ) -> None:
        """Let the dashboard answer a request, and log the request."""
        began, status = time.perf_counter(), 499
        root = scope.get("root_path", "") + DASHBOARD
        address = self.service.addresses.of(scope)
        visit = visit_of(self.service, scope, address)
        try:
            reply = await pages.answer({**scope, "root_path": root}, receive, visit)
            if reply is not None:
                status = reply.status
                await send_whole(send, *reply[:3])
        finally:
            visit.close()
        took = time.perf_counter() - began
        log_request(
            scope["method"],
            path,
            status,
            took,
            operation="dashboard",
            client=address,
            caller=visit.caller,
            request=visit.request,
        )

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


async def refuse_unrouted(
    service: Service, scope: Scope, path: str, send: Send, problem: Problem
) -> None:
    """Refuse a request that has no operation, and log it."""
    address = service.addresses.of(scope)
    request = scope["extensions"][REQUEST]
    log_request(
        scope["method"],
        path,
        problem.kind.status,
        0.0,
        operation="",
        client=address,
        caller=OPEN,
        request=request,
    )
    await send_whole(send, *as_json(problem))


_NAMES = ("queue", "name")
"""The names in a path that are written to the action log."""

_NAMED = (3, 5)
"""The parts of a path that are names. They are the same in all paths, so one lookup in a dictionary
finds the operations of a request."""


def _shape(path: str) -> tuple[str, ...]:
    """Return a path without its names.

    Example:
        >>> _shape("/v1/queues/orders/messages/42/body")
        ('', 'v1', 'queues', '', 'messages', '', 'body')
    """
    parts = path.split("/")
    for at in _NAMED:
        if at < len(parts):
            parts[at] = "" if parts[at] else "/"  # "/": the name is missing
    return tuple(parts)


def create_app(settings: Settings | None = None) -> ServerApp:
    """Return the service as an ASGI application, for another ASGI server.

    Args:
        settings: the settings of the server; `None`: the defaults.

    Raises:
        InvalidArgument: the settings conflict.
    """
    return ServerApp(settings or Settings())
