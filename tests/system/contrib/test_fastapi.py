"""bide in FastAPI and Starlette, served by uvicorn."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

import bide
from bide.contrib.fastapi import blocking_queue, health, lifespan, queue
from bide.queue.base import open_queues
from tests.servers import RedisServer
from tests.system.contrib.serving import Site, serving, wait_until
from tests.system.worker.worker_app import until


class Mail(pydantic.BaseModel):
    address: str = pydantic.Field(alias="to")
    words: set[str] = set()


Mails = Annotated[bide.AsyncQueue, Depends(queue("mails"))]


def jobs_of(handled: list[Any], url: str | None = None) -> bide.App:
    jobs = bide.App(url)

    @jobs.handler("mails")
    async def send(mail: Mail) -> None:
        handled.append(mail)

    return jobs


def site_of(jobs: bide.App | None, **options: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan(jobs, **options))
    app.get("/health")(health)

    @app.post("/mails")
    async def write(mail: Mail, mails: Mails, id: str | None = None) -> dict[str, str]:
        return {"id": (await mails.put(mail, id=id)).id}

    @app.delete("/mails/{id}")
    def cancel(
        id: str, mails: Annotated[bide.Queue, Depends(blocking_queue("mails"))]
    ) -> dict[str, bool]:
        return {"cancelled": bool(mails.cancel(id))}

    return app


def test_a_request_puts_and_the_worker_inside_handles(tmp_path: Path) -> None:
    handled: list[Any] = []
    url = f"sqlite:///{tmp_path}/bide.db"
    with serving(site_of(jobs_of(handled, url))) as site:
        mail = {"to": "ann@example.org", "words": ["hello"]}
        assert site.ask("POST", "/mails", mail).status == 200
        wait_until(lambda: handled)
        wait_until(lambda: site.ask("GET", "/health") == (200, {"status": "ok"}))
    assert handled == [Mail(to="ann@example.org", words={"hello"})]
    with bide.Queue("mails", url) as queue:
        assert queue.counts().flow.acked == 1


def test_a_route_calls_a_task_later(tmp_path: Path) -> None:
    url, expired = f"sqlite:///{tmp_path}/bide.db", list[int]()
    jobs = bide.App(url)
    app = FastAPI(lifespan=lifespan(jobs))

    @jobs.task
    async def expire(order: int) -> None:
        expired.append(order)

    @app.put("/orders/{order}")
    async def place(order: int, delay: str = "30m") -> dict[str, str | None]:
        outcome = await expire.later(delay, id=f"order-{order}").aput(order)
        return {"state": outcome.state}

    @app.post("/orders/{order}/paid")
    def pay(order: int) -> dict[str, bool]:
        return {"in_time": expire.cancel(f"order-{order}").done}

    for _ in range(2):  # as tests of an application start it again and again
        expired.clear()
        with TestClient(app) as client:
            assert client.put("/orders/42").json() == {"state": "delayed"}
            assert client.post("/orders/42/paid").json() == {"in_time": True}
            assert client.post("/orders/42/paid").json() == {"in_time": False}
            assert client.put("/orders/43?delay=1ms").status_code == 200
            wait_until(lambda: expired == [43])
        queues = [repr(queue) for queue in open_queues if queue.url == jobs.url]
        assert all(", closed" in shown for shown in queues)


def test_redis_that_is_down_at_the_start_makes_it_unhealthy_until_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path, appendonly="yes")
    server.stop()
    handled: list[Any] = []

    def unhealthy(site: Site) -> bool:
        return site.ask("GET", "/health") == (
            503,
            {"status": "unhealthy", "reason": "the store is away"},
        )

    def put(site: Site, address: str) -> int:
        return site.ask("POST", "/mails", {"to": address}).status

    try:
        with serving(site_of(jobs_of(handled, f"{server.url}?reconnect=100ms"))) as site:
            wait_until(lambda: unhealthy(site))
            assert put(site, "lost") == 500
            server.start()
            wait_until(lambda: site.ask("GET", "/health").status == 200)
            assert put(site, "first") == 200
            wait_until(lambda: len(handled) == 1)
            server.stop()
            wait_until(lambda: unhealthy(site))
            server.start()
            wait_until(lambda: site.ask("GET", "/health").status == 200)
            assert put(site, "second") == 200
            wait_until(lambda: len(handled) == 2)
    finally:
        server.stop()
    assert [mail.address for mail in handled] == ["first", "second"]
    assert "the store is away; waiting for it" in caplog.text


def test_it_stops_gracefully(tmp_path: Path) -> None:
    """A handler that runs at the end of the lifespan finishes; what it puts is stored."""
    url = f"sqlite:///{tmp_path}/bide.db"
    jobs, began = bide.App(url), list[Any]()
    log: list[str] = []

    @jobs.handler("mails")
    async def send(mail: Mail) -> None:
        began.append(mail)
        await until(lambda: log)
        log.append("ended")

    app = site_of(None)
    inner = lifespan(jobs)

    @asynccontextmanager
    async def outer(asgi: Any) -> AsyncIterator[Any]:
        async with inner(asgi) as state:
            yield state
            log.append("ending")
        log.append("closed")

    app.router.lifespan_context = outer
    with serving(app) as site:
        site.ask("POST", "/mails", {"to": "ann"})
        wait_until(lambda: began)
    assert log == ["ending", "ended", "closed"]
    with bide.Queue("mails", url) as queue:
        assert queue.counts().flow.acked == 1


def test_a_web_process_without_a_worker(tmp_path: Path) -> None:
    handled: list[Any] = []
    jobs = jobs_of(handled, f"sqlite:///{tmp_path}/bide.db")
    with serving(site_of(jobs, worker=False)) as site:
        site.ask("POST", "/mails?id=one", {"to": "ann"})
        assert site.ask("GET", "/health").status == 200
        assert site.ask("DELETE", "/mails/one").body == {"cancelled": True}
        assert site.ask("DELETE", "/mails/one").body == {"cancelled": False}
    assert handled == []


def test_the_url_of_the_lifespan_and_of_a_queue(tmp_path: Path) -> None:
    main, other = (f"sqlite:///{tmp_path}/{name}.db" for name in ("main", "other"))
    app = FastAPI(lifespan=lifespan(url=main))

    @app.get("/")
    async def urls(
        mails: Mails, others: Annotated[bide.AsyncQueue, Depends(queue("mails", url=other))]
    ) -> list[str]:
        return [mails.url, others.url]

    with TestClient(app) as client:
        assert client.get("/").json() == [main, other]


@pytest.mark.parametrize("worker", [True, False])
def test_the_app_uses_the_url_of_the_lifespan(tmp_path: Path, worker: bool) -> None:
    own, given = (f"sqlite:///{tmp_path}/{name}.db" for name in ("own", "given"))
    handled, reminded = list[Any](), list[int]()
    jobs = jobs_of(handled, own)

    @jobs.task
    async def remind(number: int) -> None:
        reminded.append(number)

    app = site_of(jobs, url=given, worker=worker)

    @app.post("/reminders")
    async def put() -> str:
        return (await remind.aput(7)).id

    with TestClient(app) as client:
        client.post("/mails", json={"to": "ann"})
        client.post("/reminders")
        if worker:
            wait_until(lambda: handled and reminded == [7])
    jobs.close()
    assert jobs.url == own
    for name in ("mails", "remind"):
        with bide.Queue(name, own) as queue:
            assert queue.counts().sizes.ready == 0
        with bide.Queue(name, given) as queue:
            counts = queue.counts()
            assert (counts.flow.acked, counts.sizes.ready) == ((1, 0) if worker else (0, 1))


def test_a_url_that_names_no_store_is_refused() -> None:
    with pytest.raises(bide.InvalidArgument, match=r"sqlite:///shop\.db"):
        lifespan(url="shop.db")


def test_starlette_and_a_mounted_application(tmp_path: Path) -> None:
    seen: list[bide.AsyncQueue] = []
    mails = queue("mails", keep="1d")

    async def write(request: Request) -> JSONResponse:
        seen.append(opened := await mails(request))
        return JSONResponse({"id": (await opened.put("hello", delay="1h", id="one")).id})

    inner = Starlette(routes=[Route("/mails", write, methods=["POST"])])
    routes = [Route("/mails", write, methods=["POST"]), Mount("/inner", inner)]
    with serving(Starlette(routes=routes, lifespan=lifespan(url="memory://mounted"))) as site:
        assert site.ask("POST", "/mails").body == {"id": "one"}
        assert site.ask("POST", "/inner/mails").body == {"id": "one"}
    assert seen[0] is seen[1]
    with pytest.raises(bide.Closed):
        asyncio.run(seen[0].counts())


def test_without_a_lifespan_the_error_names_the_fix() -> None:
    client = TestClient(site_of(None))
    for method, path in (("GET", "/health"), ("DELETE", "/mails/one")):
        with pytest.raises(bide.WrongContext, match=r"with TestClient\(app\) as client"):
            client.request(method, path)


def test_after_the_lifespan_the_error_names_the_fix() -> None:
    """As in a test without `with`, after one of the same application with it."""
    client = TestClient(site_of(None, url="memory://after"))
    with client:
        assert client.delete("/mails/one").json() == {"cancelled": False}
    with pytest.raises(bide.WrongContext, match=r"with TestClient\(app\) as client"):
        client.delete("/mails/one")


def test_dependencies_are_no_part_of_the_api() -> None:
    operation = site_of(None).openapi()["paths"]["/mails"]["post"]
    assert [one["name"] for one in operation["parameters"]] == ["id"]


def test_an_app_without_handlers_is_refused_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with pytest.raises(bide.InvalidArgument, match="the app has no handlers"):
        with TestClient(site_of(bide.App("memory://"))):
            raise AssertionError("it has started")


def test_in_a_test_the_queues_lead_to_the_store_of_the_test(bide_store: Any) -> None:
    app = site_of(None)
    with TestClient(app) as client:
        assert client.post("/mails", json={"to": "ann"}).status_code == 200
    bide_store.assert_put("mails", {"to": "ann", "words": []})


def test_a_dependency_can_be_overridden() -> None:
    dependency = queue("mails")
    app = FastAPI()

    @app.get("/")
    async def name(mails: Annotated[bide.AsyncQueue, Depends(dependency)]) -> str:
        return mails.name

    app.dependency_overrides[dependency] = lambda: bide.AsyncQueue("others", "memory://")
    assert TestClient(app).get("/").json() == "others"
