"""What cannot work is refused when it is registered; settings of queues that an app declares."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import bide
from bide import InvalidArgument
from bide.consuming.declared_settings import apply_declared
from bide.consuming.store_client import StoreClient
from bide.model.commands import Command, Configure, Put
from bide.model.internal_queues import InternalQueue
from bide.model.replies import Reply
from bide.testing import ManualWorker, ScratchStore
from bide.worker.app.lifespan import entered


async def bare_async(app: bide.App) -> AsyncIterator[None]:
    yield


def bare_plain(app: bide.App) -> Iterator[None]:
    yield


@contextlib.contextmanager
def ignores_the_app() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def good(app: bide.App) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("lifespan", "hint"),
    [
        (3, "must take the app; a lifespan is a function .*: 3 is not a callable object"),
        (ignores_the_app, "ignores_the_app must take the app; .*: too many positional"),
        (contextlib.nullcontext(), "a lifespan is a function that takes the app .* is not a call"),
    ],
)
def test_a_lifespan_that_cannot_be_one(lifespan: Any, hint: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=hint):
        bide.App("memory://", lifespan=lifespan)


@pytest.mark.parametrize("lifespan", [None, good, contextlib.nullcontext])
def test_a_lifespan_that_can_be_one(lifespan: Any) -> None:
    app = bide.App("memory://", lifespan=lifespan)

    async def story() -> None:
        async with entered(app.lifespan, app):
            pass

    asyncio.run(story())


@pytest.mark.parametrize("wrong", [lambda app: 3, bare_async, bare_plain])
def test_a_lifespan_that_makes_something_else(wrong: Any) -> None:
    app = bide.App("memory://", lifespan=wrong)

    async def story() -> None:
        async with entered(app.lifespan, app):
            pass

    with pytest.raises(
        bide.InvalidArgument, match=r"returned .*, which is not a context manager; let it"
    ):
        asyncio.run(story())


async def too_few(delivery: Any) -> None: ...


async def too_many(delivery: Any, go_on: Any, more: Any) -> None: ...


async def more_with_defaults(delivery: Any, go_on: Any, more: int = 1) -> None: ...


@pytest.mark.parametrize("function", [too_few, too_many])
def test_middleware_takes_the_delivery_and_what_goes_on(function: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"too_\w+ must take \(delivery, go_on\)"):
        bide.App("memory://").middleware(function)


def test_middleware_may_have_defaults() -> None:
    app = bide.App("memory://")
    app.middleware(more_with_defaults)
    assert app.around == [more_with_defaults]


def no_arguments() -> bool:
    return True


def three(body: Any, delivery: Any, more: Any) -> bool:
    return True


def needs_more(body: Any, *, more: Any) -> bool:
    return True


def yields(body: Any) -> Iterator[bool]:
    yield False


def one(body: Any) -> bool:
    return True


def two(body: Any, delivery: bide.Delivery) -> bool:
    return True


@pytest.mark.parametrize(
    ("still_wanted", "hint"),
    [
        (3, r"still_wanted of .*<lambda> must be a function, not int"),
        (no_arguments, r"no_arguments names no parameter .*; still_wanted takes \(body\) or"),
        (three, r"three takes too many arguments; still_wanted takes \(body\) or"),
        (needs_more, "needs_more needs more=, which bide does not pass"),
        (yields, "yields is a generator: calling it runs nothing; remove the yield"),
    ],
)
def test_a_check_that_cannot_judge(still_wanted: Any, hint: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=hint):
        bide.App("memory://").handler("q", still_wanted=still_wanted)(lambda body: None)


def delivery_only(delivery: bide.Delivery) -> bool:
    return True


@pytest.mark.parametrize("still_wanted", [one, two, delivery_only, bool, {1: True}.get])
def test_a_check_that_can_judge(still_wanted: Any) -> None:
    app = bide.App("memory://")
    app.handler("q", still_wanted=still_wanted)(lambda body: None)
    assert list(app.queue_handlers) == ["q"]


def test_a_job_says_what_to_do_and_its_check_takes_what_there_is() -> None:
    app = bide.App("memory://")

    class Idle(bide.Job):
        order: int

    with pytest.raises(bide.InvalidArgument, match=r"Idle has no method run.*def run\(self\)"):
        app.job("q")(Idle)

    class Greedy(bide.Job):
        def still_wanted(self, delivery: Any, more: Any) -> bool:
            return True

        def run(self) -> None: ...

    with pytest.raises(bide.InvalidArgument, match=r"Greedy\.still_wanted takes too many"):
        app.job("q")(Greedy)

    class Modest(bide.Job):
        def still_wanted(self) -> bool:
            return True

        def run(self) -> None: ...

    app.job("q")(Modest)
    assert list(app.queue_handlers["q"].handlers) == ["Modest"]


def test_a_window_is_at_least_as_long_as_the_time_between_two() -> None:
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match=r"window='5m' is shorter than every='1h'.*more"):
        app.source("q", every="1h", window="5m")
    app.source("q", every="1h", window="1h")


SETTINGS: dict[str, Any] = {
    "keep": "1h",
    "history": "7d",
    "result_ttl": "1d",
    "limit": 5,
    "rate": "100/m",
    "group_limit": 2,
    "group_rate": "10/s",
}


@pytest.fixture
def store() -> Iterator[ScratchStore]:
    with ScratchStore() as store:
        yield store


def app_with(**settings: Any) -> bide.App:
    app = bide.App("memory://declared")

    @app.handler("calls", **settings)
    def call(number: str) -> None: ...

    return app


def start(app: bide.App, store: ScratchStore) -> None:
    with ManualWorker(app, store) as worker:
        worker.run_due()


def limits(store: ScratchStore) -> tuple[int, int]:
    counts = store.queue("calls").counts()
    return counts.limit, counts.group_limit


def test_a_worker_applies_what_its_app_declares(store: ScratchStore) -> None:
    start(app_with(**SETTINGS), store)
    settings = store.queue("calls").configure()
    shown = {name: getattr(settings, name) for name in SETTINGS}
    assert shown == {
        "keep": 3_600_000,
        "history": 604_800_000,
        "result_ttl": 86_400_000,
        "limit": 5,
        "rate": 600_000,
        "group_limit": 2,
        "group_rate": 100_000,
    }


def test_a_restart_does_not_undo_what_people_set(store: ScratchStore) -> None:
    start(app_with(limit=5, group_limit=2), store)
    store.queue("calls").configure(limit=9)
    start(app_with(limit=5, group_limit=2), store)
    assert limits(store) == (9, 2)
    start(app_with(limit=5, group_limit=3), store)
    assert limits(store) == (9, 3)
    start(app_with(limit=6), store)
    assert limits(store) == (6, 3)
    start(app_with(), store)
    assert limits(store) == (6, 3)
    start(app_with(limit=0), store)
    assert limits(store) == (0, 3)


def test_a_queue_that_was_deleted_is_set_again(store: ScratchStore) -> None:
    start(app_with(limit=5), store)
    store.queue("calls").delete()
    assert limits(store) == (0, 0)
    start(app_with(limit=5), store)
    assert limits(store) == (5, 0)


def test_tasks_and_jobs_declare_settings(store: ScratchStore) -> None:
    app = bide.App("memory://declared")

    @app.task(queue="calls", limit=3)
    def call(number: str) -> None: ...

    @app.job("calls", group_limit=2)
    class Text(bide.Job):
        number: str

        def run(self) -> None: ...

    start(app, store)
    assert limits(store) == (3, 2)


def test_a_setting_is_declared_once() -> None:
    app = bide.App("memory://declared")

    @app.task(queue="calls", rate="100/m")
    def call(number: str) -> None: ...

    with pytest.raises(InvalidArgument, match="queue 'calls' has rate 100/m already; declare each"):
        app.task(queue="calls", rate="5/s", name="text")(lambda: None)
    app.task(queue="calls", rate="100/m", name="same")(lambda: None)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"limit": -1}, "limit=-1 must be"),
        ({"rate": "x"}, "rate='x' is not a valid rate"),
        ({"history": "x"}, "history"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_decorator(settings: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        app_with(**settings)


class Recording(StoreClient):
    """Remembers what it was asked, and raises an error after so many writes."""

    def __init__(
        self,
        store: ScratchStore,
        writes: int = 99,
        error: Exception = ConnectionError("it died"),  # noqa: B008
    ) -> None:
        super().__init__(store.lane, store.clock)
        self.asked: list[type[Command]] = []
        self._writes = writes
        self._error = error
        self.lane = self  # type: ignore[assignment]
        self._store = store

    async def acall(self, command: Command) -> Reply:
        self.asked.append(type(command))
        if isinstance(command, (Configure, Put)):
            self._writes -= 1
            if self._writes < 0:
                raise self._error
        return await self._store.lane.acall(command)


def test_a_worker_that_dies_in_between_leaves_the_rest_to_the_next(store: ScratchStore) -> None:
    handled = list(app_with(limit=5).queue_handlers.values())
    for writes in (0, 1):
        with pytest.raises(ConnectionError):
            asyncio.run(apply_declared(Recording(store, writes), handled, "w1"))
        assert limits(store) == (5 * writes, 0)
    whole = Recording(store)
    asyncio.run(apply_declared(whole, handled, "w1"))
    assert whole.asked[-2:] == [Configure, Put]
    again = Recording(store)
    asyncio.run(apply_declared(again, handled, "w1"))
    assert Configure not in again.asked


@pytest.mark.parametrize(
    ("writes", "text"),
    [(0, "calls: the declared settings (limit 5) are not applied: no room"), (1, "calls: each st")],
)
def test_a_full_store_does_not_stop_a_worker(
    store: ScratchStore, caplog: pytest.LogCaptureFixture, writes: int, text: str
) -> None:
    handled = list(app_with(limit=5).queue_handlers.values())
    full = Recording(store, writes, bide.StoreFull("no room"))
    asyncio.run(apply_declared(full, handled, "w1"))
    assert limits(store) == (5 * writes, 0)
    (warning,) = caplog.messages
    assert warning.startswith(text)
    assert warning.endswith("no room")


def test_what_was_declared_is_remembered_by_the_name_in_the_namespace(store: ScratchStore) -> None:
    app = bide.App("memory://declared")

    @app.handler("shop/calls", limit=5)
    def call(number: str) -> None: ...

    start(app, store)
    with store.queue("shop/bide:declared") as declared:
        assert declared.get("calls") is not None  # as a worker with a token of the namespace says


def test_an_app_that_declares_nothing_asks_nothing(store: ScratchStore) -> None:
    client = Recording(store)
    asyncio.run(apply_declared(client, list(app_with().queue_handlers.values()), "w1"))
    assert client.asked == []


def test_what_is_remembered_may_be_wrong(store: ScratchStore) -> None:
    with store.queue(InternalQueue.DECLARED.value) as declared:
        declared.put(["not", "settings"], id="calls", delay="1d")
    store.queue("calls").put("1")
    start(app_with(limit=5), store)
    assert limits(store) == (5, 0)
