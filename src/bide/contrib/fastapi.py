"""bide in FastAPI and Starlette: a lifespan, dependencies, a health check.

Example::

    jobs = bide.App()
    app = FastAPI(lifespan=lifespan(jobs))
    app.get("/health")(health)

    @app.put("/orders/{order}")
    async def place(order: int, orders: Annotated[bide.AsyncQueue, Depends(queue("orders"))]):
        await orders.put({"order": order}, delay="30m", id=f"order-{order}")

It imports Starlette alone, and works in Starlette without FastAPI.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.registry import opener
from bide.model.errors import WrongContext
from bide.model.times import Duration
from bide.queue.aio import AsyncQueue
from bide.queue.sync import Queue
from bide.worker.app.app import App
from bide.worker.app.open_queues import OpenQueues
from bide.worker.process.in_process import InProcessWorker

__all__ = ["blocking_queue", "health", "lifespan", "queue"]

STATE = "bide"
"""Where the lifespan leaves what it opened: in the state of the application and of requests."""


class _Opened:
    """What the lifespan of an application has opened: its queues and its worker."""

    def __init__(self, url: str | None, clock: Clock) -> None:
        self.worker: InProcessWorker | None = None
        """`None`: no handlers run in this process."""
        self.closed = False
        """Whether the lifespan has ended: nothing may be opened again."""
        self.queues = OpenQueues(lambda: url, clock)

    async def close(self) -> None:
        """Close the queues at the end of the lifespan."""
        self.closed = True
        await asyncio.to_thread(self.queues.close)  # it waits for running commands


def lifespan(
    app: App | None = None,
    *,
    url: str | None = None,
    worker: bool = True,
    queues: Iterable[str] = (),
    grace: Duration = "10s",
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return the lifespan of an application: it opens the queues, and runs handlers if you want.

    The application starts even if the store is away; `health` tells when handlers cannot run. In a
    lifespan of your own, enter it: `async with lifespan(jobs)(app) as state: yield state`.

    Args:
        app: the handlers to run in each process of the application; its store is the one of the
            queues.
        url: of the store, in place of that of `app`, which uses it until the application stops; by
            default that of `app`, else `BIDE_URL`, else `sqlite:///bide.db`.
        worker: whether to run the handlers of `app` here; false if `bide worker` does.
        queues: run only the handlers of these.
        grace: how long handlers may take to finish when the application stops.

    Raises:
        InvalidArgument: `url` names no store; or when the application starts: the app has no
            handlers.
    """
    if url is not None:
        opener(url)  # raises if it is not the URL of a store

    @asynccontextmanager
    async def open_and_close(application: Any) -> AsyncIterator[dict[str, Any]]:
        opened = _Opened(url, SYSTEM_CLOCK) if app is None else _Opened(url or app._url, app.clock)
        # Also here, for applications that drop what a lifespan yields.
        application.state.bide = opened
        try:
            with _on_store(app, url):
                if app is not None and worker:
                    async with app.running(queues, grace=grace) as opened.worker:
                        yield {STATE: opened}
                else:
                    yield {STATE: opened}
        finally:
            await opened.close()
            if app is not None:
                await asyncio.to_thread(app.close)  # the queues that its tasks have opened

    return open_and_close


@contextmanager
def _on_store(app: App | None, url: str | None) -> Iterator[None]:
    """Let an app, its worker and what its tasks put use another store, as `bide worker --url`."""
    if app is None or url is None:
        yield
        return
    own_url, app._url = app._url, url
    try:
        yield
    finally:
        app._url = own_url


def queue(
    name: str, *, url: str | None = None, **options: Any
) -> Callable[[HTTPConnection], Awaitable[AsyncQueue]]:
    """Return a dependency that provides an `AsyncQueue`, for `async def` routes and WebSockets.

    In FastAPI: `orders: Annotated[bide.AsyncQueue, Depends(queue("orders"))]`; in Starlette:
    `await queue("orders")(request)`. Each process has one queue, which the lifespan closes.

    Args:
        name: of the queue.
        url: of its store; by default the one of `lifespan`.
        options: of `bide.AsyncQueue`, such as `keep="1d"`.

    Raises:
        WrongContext: in a request: the application has no `lifespan` of this module.
    """

    async def dependency(connection: HTTPConnection) -> AsyncQueue:
        return _opened(connection).queues.async_queue(name, url, **options)

    return dependency


def blocking_queue(
    name: str, *, url: str | None = None, **options: Any
) -> Callable[[HTTPConnection], Awaitable[Queue]]:
    """Return a dependency that provides a `bide.Queue`, for `def` routes, which run in threads.

    Args:
        name: of the queue.
        url: of its store; by default the one of `lifespan`.
        options: of `bide.Queue`.
    """

    async def dependency(connection: HTTPConnection) -> Queue:
        return _opened(connection).queues.queue(name, url, **options)

    return dependency


async def health(request: Request) -> JSONResponse:
    """Answer 200 while the worker of this process handles messages, else 503 and why.

    A route: `app.get("/health")(health)`, or `Route("/health", health)`. Without a worker in this
    process it answers 200.
    """
    worker = _opened(request).worker
    trouble = worker.trouble() if worker is not None else None
    if trouble is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unhealthy", "reason": trouble}, status_code=503)


def _opened(connection: HTTPConnection) -> _Opened:
    """Return what the lifespan has opened; a mounted application has it from the outer one."""
    opened = connection.scope.get("state", {}).get(STATE)
    if opened is None:
        opened = getattr(connection.app.state, STATE, None)
    if opened is None or opened.closed:
        raise WrongContext(
            "no lifespan of bide.contrib.fastapi runs in this application: write "
            "FastAPI(lifespan=lifespan(jobs)); a mounted application needs that in the outer one, "
            "and in tests write: with TestClient(app) as client"
        )
    assert isinstance(opened, _Opened)
    return opened
