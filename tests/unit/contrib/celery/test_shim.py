"""Tasks written as for Celery that run in bide, and calls of them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.contrib.celery import Celery, MaxRetriesExceeded
from bide.testing import ScratchStore, WorkerFactory


class Shop:
    """Tasks that note their calls, and fail as often as they are told."""

    def __init__(self) -> None:
        self.app = app = Celery("shop", store="memory://shim")
        self.seen: list[Any] = []
        self.failures: list[Exception] = []

        @app.task(name="expire")
        def expire(order: int, force: bool = False) -> None:
            self.seen.append((order, force))
            if self.failures:
                raise self.failures.pop()

        @app.task(name="charge", bind=True, max_retries=2, default_retry_delay=60)
        def charge(task: Any, order: int, **how: Any) -> None:
            self.seen.append((task.request.id, task.request.retries, task.request.args))
            if "eta" in how:
                how["eta"] = datetime.fromisoformat(how["eta"])
            if self.failures:
                task.retry(exc=self.failures.pop(), **how)

        @app.task(
            name="post",
            autoretry_for=(OSError,),
            retry_backoff=2,
            retry_jitter=False,
            dont_autoretry_for=(FileNotFoundError,),
            max_retries=2,
            queue="slow",
        )
        def post(order: int) -> None:
            self.seen.append(order)
            if self.failures:
                raise self.failures.pop()

        self.expire, self.charge, self.post = expire, charge, post


@pytest.fixture
def shop(bide_store: ScratchStore) -> Shop:
    return Shop()


def states(store: ScratchStore, queue: str = "celery") -> list[str]:
    return [message.state for message in store.queue(queue).scan()]


def test_a_task_that_is_sent_by_its_name_has_its_own_queue_and_retries(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    @shop.app.task(name="often", autoretry_for=(OSError,), max_retries=12, queue="slow")
    def often(order: int) -> None:
        shop.seen.append(order)
        raise ConnectionError("bank")

    result = shop.app.send_task("often", (1,))
    assert (states(bide_store), states(bide_store, "slow")) == ([], ["ready"])
    assert result.revoke()
    shop.app.send_task("often", (2,))
    worker = bide_worker(shop.app, errors="collect")
    worker.advance("1d")
    assert shop.seen == [2] * 13
    assert states(bide_store, "slow") == ["dead"]


def test_delay_and_apply_async_call_the_function(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    worker = bide_worker(shop.app)
    shop.expire.delay(1)
    shop.expire.apply_async((2,), {"force": True}, countdown=1800, task_id="expire-2")
    shop.app.send_task("expire", (3,), eta=datetime.now(UTC) + timedelta(days=1))
    bide_store.assert_put(
        "celery",
        {"task": "expire", "args": {"order": 2, "force": True}},
        delay="30m",
        id="expire-2",
    )
    worker.run_due()
    assert shop.seen == [(1, False)]
    worker.advance("30m")
    assert shop.seen == [(1, False), (2, True)]
    shop.expire(9)  # here and now
    assert shop.seen[-1] == (9, False)


def test_terminate_stops_a_task_that_runs(shop: Shop, bide_store: ScratchStore) -> None:
    result = shop.app.send_task("often", (1,))
    queue = bide_store.queue("celery")
    (delivery,) = queue.claim()
    assert not result.revoke()
    assert result.revoke(terminate=True).state == "stopping"
    assert result.state == "PENDING"
    delivery.release()
    assert queue.get(result.id) is None


def test_the_same_task_id_is_one_message_and_revoke_removes_it(
    shop: Shop, bide_store: ScratchStore
) -> None:
    for _ in range(2):
        result = shop.expire.apply_async((2,), countdown=60, task_id="a")
    assert len(bide_store.pending("celery")) == 1
    assert result.revoke()
    assert not result.revoke()
    assert bide_store.pending("celery") == []
    slow = shop.post.apply_async((1,), countdown=60)
    assert shop.app.AsyncResult(slow.id).revoke()
    assert bide_store.pending("slow") == []


def test_an_uncaught_exception_is_a_dead_letter_at_once_as_celery_fails_a_task(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    shop.failures = [ValueError("no such order")]
    shop.expire.delay(1)
    with pytest.raises(ValueError, match="no such order"):
        bide_worker(shop.app).run_due()
    assert states(bide_store) == ["dead"]


def test_retry_runs_again_after_the_delay_until_no_retry_is_left(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    worker = bide_worker(shop.app)
    shop.failures = [OSError("third"), OSError("second"), OSError("first")]
    shop.charge.apply_async((7,), task_id="c")
    worker.run_due()
    [waiting] = bide_store.pending("celery")
    assert waiting.error == "OSError: first"
    assert worker.advance("59s") == []
    worker.advance("1s")
    with pytest.raises(OSError, match="third"):
        worker.advance("1m")
    assert shop.seen == [("c", 0, [7]), ("c", 1, [7]), ("c", 2, [7])]
    assert states(bide_store) == ["dead"]


def test_retry_takes_a_countdown_and_refuses_other_arguments(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    worker = bide_worker(shop.app)
    shop.failures = [OSError()]
    shop.charge.delay(7, countdown=5)
    worker.run_due()
    worker.advance("5s")
    assert states(bide_store) == []
    shop.failures = [OSError()]
    shop.charge.delay(8, args=(9,))
    with pytest.raises(bide.InvalidArgument, match="a retry has the same arguments"):
        worker.run_due()


def test_retry_with_eta_counts_by_the_clock_of_the_test(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    app, ran = Celery("shop", store="memory://shim"), []

    @app.task(bind=True, max_retries=1)
    def charge(task: Any) -> None:
        ran.append(bide_store.clock.datetime())
        task.retry(eta=ran[0] + timedelta(minutes=5))

    bide_store.clock.advance(30 * 86_400)  # far from the time of this machine
    charge.delay()
    bide_worker(app, errors="collect").advance("1h")
    assert ran[1] - ran[0] == timedelta(minutes=5)
    charge.apply_async(expires=ran[0] + timedelta(hours=2))
    [message] = bide_store.pending("celery")
    assert message.expires == 3_600_000


@pytest.mark.parametrize(
    ("send", "fix"),
    [
        (lambda shop: shop.expire.delay(), "missing a required argument: 'order'"),
        (lambda shop: shop.expire.delay(1, True, 3), "too many positional arguments"),
        (lambda shop: shop.expire.delay(1, forse=True), "unexpected keyword argument 'forse'"),
        (lambda shop: shop.charge.apply_async(), "missing a required argument: 'order'"),
        (lambda shop: shop.app.send_task("expire"), "missing a required argument: 'order'"),
        (lambda shop: shop.expire.apply_async("7"), r"args='7' .* tuple: args=\('7',\)"),
        (lambda shop: shop.app.send_task("elsewhere", "7"), "must be a list or a tuple"),
        (lambda shop: shop.expire.apply_async((1,), [1]), "must map names to arguments"),
    ],
)
def test_wrong_arguments_are_refused_when_a_task_is_sent(
    shop: Shop, bide_store: ScratchStore, send: Callable[[Shop], Any], fix: str
) -> None:
    with pytest.raises(bide.InvalidArgument, match=fix):
        send(shop)
    assert states(bide_store) == []


def test_without_exc_the_last_retry_says_so(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    app = Celery(store="memory://shim")

    @app.task(bind=True, max_retries=0)
    def charge(task: Any) -> None:
        task.retry()

    charge.delay()
    with pytest.raises(MaxRetriesExceeded, match="has been retried 0 times"):
        bide_worker(app).run_due()


def test_autoretry_waits_twice_as_long_each_time(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    worker = bide_worker(shop.app)
    shop.failures = [OSError("b"), OSError("a")]
    shop.post.delay(1)
    worker.run_due()
    worker.advance("2s")
    assert worker.advance("3s") == []
    worker.advance("1s")
    assert (shop.seen, states(bide_store, "slow")) == ([1, 1, 1], [])
    shop.failures = [FileNotFoundError("gone")]
    shop.post.delay(2)
    with pytest.raises(FileNotFoundError):
        worker.run_due()
    assert states(bide_store, "slow") == ["dead"]


def test_any_task_may_go_to_any_queue_of_the_app(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    shop.expire.apply_async((1,), queue="slow")
    bide_worker(shop.app).run_due()
    assert shop.seen == [(1, False)]
    with pytest.raises(bide.InvalidArgument, match="queue='fast' belongs to no task"):
        shop.expire.apply_async((1,), queue="fast")


def test_tasks_that_celery_put_run_and_parts_of_a_canvas_are_buried(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    stamp = {"__type__": "datetime", "__value__": "2026-01-01T00:00:00+00:00"}
    bodies = [
        {"task": "expire", "text": json.dumps([[1], {"force": stamp}, {"chain": None}])},
        {"task": "expire", "text": json.dumps([[2], {}, {"chain": [{}], "chord": None}])},
        {"task": "expire", "content_type": "application/x-python-serialize", "data": "gA=="},
        {"order": 3},
    ]
    for body in bodies:
        bide_store.queue("celery").put(body, headers={"bide-job": "expire"})
    worker = bide_worker(shop.app, errors="collect")
    worker.run_due()
    reasons = [str(letter.error) for letter in bide_store.queue("celery").dead()]
    hints = ("part of a canvas (chain)", "not JSON", "not a call of a task")
    assert [hint for hint, reason in zip(hints, reasons, strict=True) if hint not in reason] == []
    assert shop.seen == [(1, datetime(2026, 1, 1, tzinfo=UTC))]


def test_expires_counts_from_now_as_for_celery(shop: Shop, bide_store: ScratchStore) -> None:
    shop.expire.apply_async((1,), countdown=60, expires=100)
    [message] = bide_store.pending("celery")
    assert 39_000 < (message.expires or 0) <= 40_000
    for expires in (60, datetime.now(UTC)):
        with pytest.raises(bide.InvalidArgument, match="before the task is due"):
            shop.expire.apply_async((1,), countdown=60, expires=expires)


def test_options_of_a_task_count_for_each_way_to_put_it(bide_store: ScratchStore) -> None:
    app = Celery("shop", store="memory://shim")

    @app.task(name="mail", priority=9, expires=60)
    def mail(order: int) -> None: ...

    mail.delay(1)
    mail.put(2)
    mail.later("10s").put(3)
    mail.put_many([(4,), (5,)])
    mail.later(priority=1, expires="1h").put(6)
    options = [(message.priority, message.expires) for message in bide_store.puts()]
    assert options == [(9, 60_000)] * 5 + [(1, 3_600_000)]


def test_naive_times_are_refused(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    naive = datetime(2099, 1, 1)  # noqa: DTZ001
    with pytest.raises(bide.InvalidArgument, match="is naive"):
        shop.expire.apply_async((1,), expires=naive)
    for expires in (None, 3_600):
        with pytest.raises(bide.InvalidArgument, match=r"eta=.* is naive"):
            shop.expire.apply_async((1,), eta=naive, expires=expires)
    shop.failures.append(OSError("away"))
    shop.charge.delay(1, eta=naive.isoformat())
    bide_worker(shop.app, errors="collect").run_due()
    assert "is naive" in str(bide_store.dead("celery")[0].error)


def test_what_celery_put_is_not_run_once_it_has_expired(
    shop: Shop,
    bide_worker: WorkerFactory,
    bide_store: ScratchStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "bide.worker.delivery")
    now = datetime.fromtimestamp(bide_store.clock.now() / 1000, UTC)
    ends = [now + timedelta(seconds=59), now + timedelta(seconds=61)]
    naive = [end.replace(tzinfo=None) for end in ends]  # which Celery takes for UTC
    for order, end in enumerate([*ends, *naive, None]):
        body = {
            "task": "expire",
            "text": json.dumps([[order], {}, {}]),
            "headers": {"id": str(order), "expires": end and end.isoformat()},
        }
        bide_store.queue("celery").put(body, delay=60, headers={"bide-job": "expire"})
    bide_worker(shop.app).advance("1m")
    assert [order for order, _ in shop.seen] == [1, 3, 4]
    assert states(bide_store) == []
    assert caplog.text.count("discarded: it expired at") == 2


def test_an_expires_that_is_no_time_is_buried(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    body = {"task": "expire", "text": "[[1], {}, {}]", "headers": {"expires": "soon"}}
    bide_store.queue("celery").put(body, headers={"bide-job": "expire"})
    bide_worker(shop.app, errors="collect").run_due()
    assert (shop.seen, states(bide_store)) == ([], ["dead"])


def test_a_countdown_to_a_time_that_is_past_is_due_at_once(
    shop: Shop, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    worker = bide_worker(shop.app)
    shop.expire.apply_async((1,), countdown=-0.5)
    shop.expire.apply_async((2,), countdown=-30, expires=10)
    worker.run_due()
    assert shop.seen == [(1, False), (2, False)]
    shop.failures = [OSError()]
    shop.charge.apply_async((8,), {"countdown": -5}, task_id="d")
    worker.run_due()
    assert shop.seen[-2:] == [("d", 0, [8]), ("d", 1, [8])]
    assert states(bide_store) == []


def test_autoretry_takes_a_list_of_exceptions(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    app = Celery(store="memory://shim")

    @app.task(autoretry_for=[OSError], dont_autoretry_for=[FileNotFoundError])
    def post(kind: str) -> None:
        raise OSError(kind) if kind == "again" else FileNotFoundError(kind)

    post.delay("again")
    worker = bide_worker(app)
    worker.run_due()
    assert states(bide_store) == ["delayed"]
    post.delay("gone")
    with pytest.raises(FileNotFoundError):
        worker.run_due()


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda shop: shop.expire.s(1), "bide has no canvas"),
        (lambda shop: shop.expire.apply((1,)), "call the task as a function"),
        (lambda shop: shop.expire.delay_on_commit(1), "within the transaction"),
        (lambda shop: shop.expire.apply_async((1,), link=None), "bide has no canvas"),
        (
            lambda shop: shop.expire.apply_async((1,), retry=True),
            "(retry=...) is not supported: leave",
        ),
        (lambda shop: shop.app.conf, "options are arguments of Celery(...)"),
        (lambda shop: shop.app.add_periodic_task, "use @app.schedule"),
        (lambda shop: Celery(broker="redis://"), "Celery(broker=...) is not supported"),
        (
            lambda shop: shop.app.task(rate_limit="1/s"),
            "@app.task(rate_limit=...) is not supported",
        ),
        (lambda shop: shop.app.task(acks_late=False), "bide acks after the task"),
        (lambda shop: shop.app.task(name="expire")(print), "already a task named 'expire'"),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_do(shop: Shop, call: Any, hint: str) -> None:
    with pytest.raises(bide.BideError) as raised:
        call(shop)
    assert hint in str(raised.value)


def test_results_are_kept_for_their_time_and_tell_how_a_task_ended(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    app = Celery(store="memory://shim", result_ttl="1h")

    @app.task(max_retries=0, queue="sums")
    def double(number: int) -> int:
        return 2 * number

    @app.task(ignore_result=True)
    def quiet() -> int:
        return 1

    worker = bide_worker(app)
    done, failed, revoked = double.delay(21), double.delay(None), double.delay(3)
    assert (done.state, done.ready()) == ("PENDING", False)
    with pytest.raises(bide.NotEnded):
        done.get(timeout=0)
    revoked.revoke()
    silent = quiet.delay()
    with pytest.raises(TypeError):
        worker.run_due()
    worker.run_due()
    assert (done.get(), done.state, done.successful()) == (42, "SUCCESS", True)
    assert app.AsyncResult(done.id).get() == 42
    assert silent.get() is None
    assert (failed.status, failed.failed()) == ("FAILURE", True)
    with pytest.raises(bide.NotAcked, match="died at"):
        failed.get()
    assert (revoked.state, app.AsyncResult("unknown").state) == ("REVOKED", "PENDING")
    bide_store.clock.advance(3601)
    with pytest.raises(bide.NotRemembered):
        done.get()


def test_async_functions_are_refused(shop: Shop) -> None:
    async def work() -> None: ...

    with pytest.raises(bide.InvalidArgument, match="is async"):
        shop.app.task(work)
    with pytest.raises(bide.InvalidArgument, match="is async"):
        shop.app.task(staticmethod(work))
    with pytest.raises(AttributeError):
        _ = shop.app.nothing
    with pytest.raises(AttributeError):
        _ = shop.expire.nothing


def test_the_kit_needs_no_celery(bide_store: ScratchStore) -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['celery'] = sys.modules['kombu'] = None\n"
        "from bide.contrib.celery import Celery; Celery(store='memory://')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
