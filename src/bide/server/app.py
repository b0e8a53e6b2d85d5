"""The ASGI application: routes, access, answers to errors, and logs for every request."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol
from urllib.parse import quote, unquote

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock
from bide.logs import logger
from bide.model.errors import BideError, StoreError
from bide.model.limits import MAX_URL
from bide.server.access.foreign_pages import refuse_pages
from bide.server.access.rights import OPEN
from bide.server.call import ApiCall
from bide.server.http.client_address import network_of
from bide.server.limits.gate import Visit
from bide.server.limits.request_bodies import ClientGone, Receive, RequestBody
from bide.server.logs import DONE, Act, count_of, log_request, message_of
from bide.server.metrics import exporting_server
from bide.server.operation import Answer, Operation
from bide.server.problem import Problem, as_json, of_bide
from bide.server.request import ApiRequest, Scope
from bide.server.response import Response, Send, new_request_id
from bide.server.routes import OPERATIONS
from bide.server.service import Service
from bide.server.settings import Settings
from bide.server.shared_state import SharedState
from bide.tasks import background

STORE_PATIENCE = 5.0
"""Seconds for the store to say who the caller is, for operations that have an answer without it:
the client, such as Prometheus, may not wait for longer."""

_log = logger("bide.server")


async def answer(
    service: Service,
    operations: Mapping[str, Operation],
    scope: Scope,
    path: str,
    receive: Receive,
    response: Response,
) -> None:
    """Answer a request: authenticate, limit, decode, execute, encode.

    Args:
        service: the service that answers.
        operations: the operations of the path, by method.
        scope: the ASGI scope of the request.
        path: its path, not decoded.
        receive: returns the parts of its body.
        response: the answer.
    """
    began = time.perf_counter()
    method: str = scope["method"]
    operation = operations.get("GET" if method == "HEAD" else method)
    if operation is None:
        await refuse_unrouted(service, scope, path, response, _wrong_method(method, operations))
        return
    client, bodies = service.addresses.of(scope), service.large_bodies
    body = RequestBody(receive, bodies)
    request = ApiRequest(operation, scope, path, client, body, bodies, service.settings)
    response.headers |= request.mark
    visit = service.gate.visit(scope, network_of(client), response.request)
    call = ApiCall(service, request, visit, response)
    # What is logged if the task is cancelled before there is an answer.
    status, result, content = 0, "ended", None
    try:
        admission, handle = service.admission, operation.handle
        if operation.right is not None:  # else it is open to all, such as a health check
            try:
                patience = None if operation.without_store is None else STORE_PATIENCE
                visit.caller = await admission.caller(request.token, client, patience)
            except StoreError:
                if operation.without_store is None:
                    raise
                handle = operation.without_store
            else:
                if operation.right != "":  # else any valid token will do
                    visit.caller.need(operation.right)
                visit.admit()
        if not admission.requires_tokens:
            refuse_pages(request)  # nothing else stops a page of another site
        arguments = await request.arguments()
        returned = await handle(call, **arguments)
        reply = returned if isinstance(returned, Answer) else Answer(200, returned)
        if returned is not None:  # else the handler has sent a stream
            data = reply.content
            data = data if isinstance(data, bytes) else msgspec.json.encode(data)
            visit.carried(len(data))
            headers = {"content-type": reply.content_type, **reply.headers}
            await response.send_whole(reply.status, data, headers)
        status, result, content = reply.status, DONE, reply.content
    except ClientGone:
        status, result = 499, "client-gone"  # as nginx logs it
    except Problem as problem:
        status, result = await _refuse(response, problem)
    except BideError as error:
        problem_of_error = of_bide(error, service.client_text.of(error))
        status, result = await _refuse(response, problem_of_error)
    except Exception:  # noqa: BLE001  (it is logged, and other requests continue)
        _log.exception("%s %s failed", method, operation.path)
        text = "an internal error of the server; please report it with the traceback in its log"
        status, result = await _refuse(response, Problem("internal", text))
    finally:
        body.free()
        visit.close(body.received)
        took = service.note(operation.name, status, began)
        log_request(
            method,
            path,
            status,
            took,
            operation=operation.name,
            client=client,
            caller=visit.caller,
            request=visit.request,
        )
        if service.action_log.is_on and operation.right is not None:
            _log_acts(call, result, content)


def _wrong_method(method: str, operations: Mapping[str, Operation]) -> Problem:
    """Return the problem of a method that a path does not have."""
    methods = {*operations, "HEAD"} if "GET" in operations else set(operations)
    allowed = ", ".join(sorted(methods))
    return Problem(
        "method-not-allowed",
        f"{method} is not allowed here; use {allowed}",
        headers={"allow": allowed},
    )


async def _refuse(response: Response, problem: Problem) -> tuple[int, str]:
    """Send a problem; return its status and name."""
    if response.streams:  # the status was sent already: only the end can be sent
        await response.end_stream()
    else:
        status, body, headers = as_json(problem)
        await response.send_whole(status, body, headers)
    return problem.kind.status, problem.kind.name


def _log_acts(call: ApiCall, result: str, content: object) -> None:
    """Write what a call has done to the action log."""
    request, caller = call.request, call.visit.caller
    acts = call.acts
    if result != DONE:  # a refused batch has executed no command
        acts = [Act(act.act, act.queue, 0, result, act.target) for act in acts]
    if not acts:
        names = {name: unquote(part) for name, part in request.names.items()}
        queue = names.pop("queue", None)
        target = next(iter(names.values()), None) or message_of(content)
        acts = [Act(request.operation.name, queue, count_of(content), result, target)]
    call.service.action_log.write(
        acts,
        who=caller.name or caller.token or "",
        token=caller.token or "",
        client=request.client,
        namespace=caller.namespace,
        request=call.visit.request,
    )


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
        self._shares = shared is not None
        """Whether other processes have the same state."""
        self._pages = None if pages is None else pages(self.service)
        """The dashboard; `None`: it is off."""
        self._ready = ready
        self._operations: dict[tuple[str, ...], dict[str, Operation]] = {}
        """The operations by path, without its names, and by method."""
        for operation in OPERATIONS:
            self._operations.setdefault(_path_pattern(operation.path), {})[operation.method] = (
                operation
            )

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
        tasks = [
            background("bide-tokens", service.keep_tokens),
            background("bide-zones", service.keep_planned),
            background("bide-past", service.keep_past),
        ]
        if service.lane.capabilities.shared:
            tasks.append(background("bide-heartbeat", service.heartbeat().keep))
        try:
            async with self._exporting():
                yield
        finally:
            service.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._pages is not None:
                await self._pages.close()
            await service.end()

    def _exporting(self) -> AbstractAsyncContextManager[None]:
        """Export the metrics of this process; those of processes that share, their supervisor does.

        See `bide.server.serve`.
        """
        service = self.service
        if self._shares:
            return nullcontext()
        return exporting_server(
            service.lane,
            lambda: service.shared.stats.together(service.stats),
            service.pushing.known,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; ASGI calls this."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"bide serves only HTTP, not {scope['type']!r}")
        response = Response(send, new_request_id())
        # Not decoded: an id may contain an encoded slash.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        if root := scope.get("root_path"):  # the path at which the application is mounted
            path = path.removeprefix(quote(root))
        if len(path) + len(scope["query_string"]) > MAX_URL:
            too_long = Problem("malformed", f"the URL is longer than {MAX_URL:,} bytes")
            await refuse_unrouted(self.service, scope, path, response, too_long)
            return
        is_page = f"{path}/".startswith(f"{DASHBOARD}/")
        if (operations := self._operations.get(_path_pattern(path))) is not None:
            await answer(self.service, operations, scope, path, receive, response)
        elif self._pages is not None and is_page:
            await self._show_page(self._pages, scope, path, receive, response)
        else:
            detail = "there is nothing at this path; /docs lists the operations"
            if self._pages is None and (is_page or path == "/"):
                detail += "; the dashboard is off: bide serve --dashboard"
            unknown = Problem("not-found", detail)
            await refuse_unrouted(self.service, scope, path, response, unknown)

    async def _show_page(
        self, pages: "Pages", scope: Scope, path: str, receive: Receive, response: Response
    ) -> None:
        """Let the dashboard answer a request, and log the request."""
        began = time.perf_counter()
        status = 499  # unless there is an answer: the client has gone
        root = scope.get("root_path", "") + DASHBOARD
        address = self.service.addresses.of(scope)
        visit = self.service.gate.visit(scope, network_of(address), response.request)
        try:
            reply = await pages.answer({**scope, "root_path": root}, receive, visit)
            if reply is not None:
                status = reply.status
                await response.send_whole(reply.status, reply.content, reply.headers)
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
    service: Service, scope: Scope, path: str, response: Response, problem: Problem
) -> None:
    """Refuse a request that has no operation, and log it."""
    address = service.addresses.of(scope)
    log_request(
        scope["method"],
        path,
        problem.kind.status,
        0.0,
        operation="",
        client=address,
        caller=OPEN,
        request=response.request,
    )
    status, body, headers = as_json(problem)
    await response.send_whole(status, body, headers)


_NAME_PLACES = (3, 5)
"""The parts of a path that are names. They are the same in all paths, so one lookup in a dictionary
finds the operations of a request."""


def _path_pattern(path: str) -> tuple[str, ...]:
    """Return the parts of a path with those that are names left empty: the key of its operations.

    A path whose name is missing has no operation. It gets "/" there, which no pattern has.

    Example:
        >>> _path_pattern("/v1/queues/orders/messages/42/body")
        ('', 'v1', 'queues', '', 'messages', '', 'body')
    """
    parts = path.split("/")
    for place in _NAME_PLACES:
        if place < len(parts):
            parts[place] = "" if parts[place] else "/"
    return tuple(parts)


def create_app(settings: Settings | None = None) -> ServerApp:
    """Return the service as an ASGI application, for another ASGI server.

    Args:
        settings: the settings of the server; `None`: the defaults.

    Raises:
        InvalidArgument: the settings conflict.
    """
    return ServerApp(settings or Settings())
