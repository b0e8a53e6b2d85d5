"""Tasks of Celery that wait in bide: the real Celery, a real Redis as broker."""

import base64
import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, beat, chain, chord, group, signals
from celery.exceptions import Reject
from kombu import compression, serialization

import bide
from bide.contrib.celery import install
from bide.testing import ManualWorker, ScratchStore
from tests.system.contrib.celery.conftest import Broker

pytestmark = [
    # Celery leaves the connections of its backend and its pools to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

kombu_compression: Any = compression  # kombu has no annotations
kombu_serialization: Any = serialization

Worker = Callable[..., ManualWorker]


@pytest.fixture
def app(celery_app: Any) -> Any:
    install(celery_app, "memory://celery-tests")
    return celery_app


@pytest.fixture
def told(app: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Celery would broadcast to its workers."""
    told: list[Any] = []
    kind = next(one for one in type(app.control).__mro__ if one.__module__ == "celery.app.control")
    monkeypatch.setattr(
        kind, "broadcast", lambda self, command, **options: told.append(options["arguments"])
    )
    return told


def expire(app: Any) -> Any:
    return app.tasks["shop.expire"]


def published(broker: Broker, queue: str = "celery") -> list[dict[str, Any]]:
    """Return what a worker of Celery would get, oldest first."""
    found = [json.loads(one) for one in broker.client.lrange(queue, 0, -1)]
    for one in found:
        assert one["body"]
    return found[::-1]


def arguments(message: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(message["body"]))


def test_a_task_waits_in_bide_and_is_published_when_it_is_due(
    app: Any, broker: Broker, bide_worker: Worker, bide_store: ScratchStore
) -> None:
    worker = bide_worker(app.__bide_app__())
    result = expire(app).apply_async((42,), {}, countdown=1800)
    waiting = bide_store.assert_put("celery", delay="30m", id=result.id)
    assert waiting.headers == {"bide-job": "shop.expire"}
    assert broker.client.keys() == []

    assert worker.advance("29m") == []
    assert published(broker) == []

    worker.advance("1m")
    [message] = published(broker)
    assert arguments(message)[0] == [42]
    headers = message["headers"]
    assert (headers["id"], headers["task"], headers["eta"]) == (result.id, "shop.expire", None)
    assert message["properties"]["correlation_id"] == result.id
    assert bide_store.pending("celery") == []


def test_an_eta_waits_and_a_naive_one_is_utc_as_for_celery(
    app: Any, bide_store: ScratchStore
) -> None:
    when = datetime(2040, 1, 1, 12, tzinfo=UTC)
    for eta in (when, when.replace(tzinfo=None), when.isoformat()):
        expire(app).apply_async((1,), eta=eta)
    dues = {message.due for message in bide_store.pending("celery")}
    assert dues == {int(when.timestamp() * 1000)}


def test_a_task_without_a_due_time_goes_to_the_broker_as_ever(
    app: Any, broker: Broker, bide_store: ScratchStore
) -> None:
    expire(app).delay(1)
    expire(app).apply_async((2,), countdown=0)
    app.send_task("shop.expire", (3,))
    assert [arguments(one)[0] for one in published(broker)] == [[1], [2], [3]]
    bide_store.assert_not_put("celery")


def test_the_second_send_of_an_id_stores_nothing(app: Any, bide_store: ScratchStore) -> None:
    for order in (1, 2):
        expire(app).apply_async((order,), countdown=60, task_id="order-1")
    [message] = bide_store.pending("celery")
    assert json.loads(message.body["text"])[0] == [1]


def test_revoke_removes_a_task_and_its_result_says_so(
    app: Any, broker: Broker, bide_worker: Worker, bide_store: ScratchStore
) -> None:
    worker = bide_worker(app.__bide_app__())
    result = expire(app).apply_async((42,), countdown=60)
    result.revoke()
    assert bide_store.pending("celery") == []
    assert result.state == "REVOKED"
    worker.advance("1h")
    assert published(broker) == []


def test_a_chord_is_told_of_a_part_that_is_revoked(
    app: Any, bide_store: ScratchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(
        type(app.backend),
        "on_chord_part_return",
        lambda self, request, state, error: told.append((request.id, state, request.chord["task"])),
    )
    result = chord([expire(app).s(n).set(countdown=60) for n in (1, 2)])(expire(app).s())
    part = result.parent[0]
    part.revoke()
    assert told == [(part.id, "REVOKED", "shop.expire")]


def test_revoke_of_several_removes_what_waits_and_tells_workers_about_the_rest(
    app: Any, bide_store: ScratchStore, told: list[Any]
) -> None:
    waiting = [expire(app).apply_async((n,), countdown=60).id for n in range(2)]
    app.control.revoke([*waiting, "sent"], terminate=True)
    assert bide_store.pending("celery") == []
    assert told == [{"task_id": ["sent"], "terminate": True, "signal": "SIGTERM"}]
    for id in ("sent", "x" * 600, "two\nlines"):
        app.control.revoke(id)
        assert told[-1]["task_id"] == id


def test_a_retry_waits_beside_its_first_run_and_is_revoked_with_the_task(
    app: Any, bide_store: ScratchStore
) -> None:
    task = expire(app)
    task.apply_async((1,), countdown=60, task_id="a")
    sent = {"id": "a", "args": [1], "kwargs": {}, "retries": 0, "delivery_info": {}}
    task.push_request(**sent, called_directly=False)
    with pytest.raises(Exception, match="Retry in 30s"):
        task.retry(countdown=30)
    task.pop_request()
    assert {message.id for message in bide_store.pending("celery")} == {"a", "a.retry-1"}
    app.AsyncResult("a").revoke()
    assert bide_store.pending("celery") == []


def test_a_task_that_is_just_being_published_is_revoked_by_the_workers(
    app: Any, bide_store: ScratchStore, told: list[Any]
) -> None:
    expire(app).apply_async((1,), countdown=60, task_id="a")
    bide_store.clock.advance(60)
    bide_store.queue("celery").put({"headers": {"id": "a"}}, delay=60, id="a.retry-1", group="a")
    bide_store.queue("celery").claim(1)
    app.AsyncResult("a").revoke()
    assert [message.id for message in bide_store.queue("celery").scan()] == ["a"]
    assert [one["task_id"] for one in told] == ["a"]


def test_expires_is_honoured_by_the_worker_that_gets_it(
    app: Any, broker: Broker, bide_worker: Worker
) -> None:
    worker = bide_worker(app.__bide_app__())
    expire(app).apply_async((1,), countdown=60, expires=3600)
    expire(app).apply_async((2,), countdown=60, expires=datetime.now(UTC) - timedelta(hours=1))
    worker.advance("1m")
    alive, expired = sorted(published(broker), key=arguments)
    assert datetime.fromisoformat(alive["headers"]["expires"]) > datetime.now(UTC)
    assert 0 < float(alive["properties"]["expiration"]) <= 3_600_000
    assert datetime.fromisoformat(expired["headers"]["expires"]) < datetime.now(UTC)
    assert "expiration" not in expired["properties"]


def test_an_expires_without_a_time_zone_is_of_utc_as_for_celery(
    app: Any, broker: Broker, bide_worker: Worker
) -> None:
    worker = bide_worker(app.__bide_app__())
    end = (datetime.now(UTC) + timedelta(hours=1)).replace(tzinfo=None)
    expire(app).apply_async((1,), countdown=60, expires=end)
    worker.advance("1m")
    (task,) = published(broker)
    assert task["headers"]["expires"] == end.isoformat()
    assert 3_500_000 < float(task["properties"]["expiration"]) <= 3_600_000


def test_canvas_with_a_countdown_waits(app: Any, broker: Broker, bide_store: ScratchStore) -> None:
    one = expire(app).si(1)
    group(one, one).apply_async(countdown=60)
    assert len(bide_store.pending("celery")) == 2
    chain(one, one).apply_async(countdown=60)
    assert len(bide_store.pending("celery")) == 3
    chord([one.set(countdown=60), one.set(countdown=60)])(one)
    assert len(bide_store.pending("celery")) == 5
    assert published(broker) == []


def test_route_priority_and_signals_are_those_of_celery(
    app: Any, broker: Broker, bide_worker: Worker
) -> None:
    seen: list[str] = []

    def before(sender: str, headers: dict[str, Any], **_: Any) -> None:
        headers["trace"] = "t-1"
        seen.append(sender)

    signals.before_task_publish.connect(before)
    try:
        worker = bide_worker(app.__bide_app__())
        expire(app).apply_async((1,), countdown=60, queue="slow", priority=6)
    finally:
        signals.before_task_publish.disconnect(before)
    worker.advance("1m")
    assert seen == ["shop.expire"]
    [message] = published(broker, "slow\x06\x166")
    assert message["headers"]["trace"] == "t-1"


@pytest.mark.parametrize("serializer", ["pickle", "yaml"])
def test_other_serializers_and_compression_arrive_as_they_were_sent(
    app: Any, broker: Broker, bide_worker: Worker, serializer: str
) -> None:
    worker = bide_worker(app.__bide_app__())
    expire(app).apply_async((1,), countdown=60, serializer=serializer, compression="gzip")
    worker.advance("1m")
    [message] = published(broker)
    body = kombu_compression.decompress(
        base64.b64decode(message["body"]), message["headers"]["compression"]
    )
    kind, encoding = message["content-type"], message["content-encoding"]
    args, kwargs, _ = kombu_serialization.loads(body, kind, encoding, accept={kind})
    assert (list(args), kwargs) == ([1], {})


def test_an_option_that_is_no_json_is_refused(app: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"shop\.expire has a header or an option"):
        expire(app).apply_async((1,), countdown=60, headers={"owner": object()})


def test_descriptions_of_arguments_that_are_no_unicode_are_escaped(
    app: Any, bide_store: ScratchStore
) -> None:
    """A file name that is no UTF-8 has half of a surrogate pair, which Celery escapes as JSON."""
    expire(app).apply_async(
        (),
        {"order": "caf\udce9.txt"},
        countdown=60,
        argsrepr="\udcff",
        kwargsrepr="{'order': 'caf\udce9.txt'}",
    )
    [message] = bide_store.pending("celery")
    assert message.body["headers"]["argsrepr"] == "\\udcff"
    assert message.body["headers"]["kwargsrepr"] == "{'order': 'caf\\udce9.txt'}"
    assert json.loads(message.body["text"])[1] == {"order": "caf\udce9.txt"}


def test_a_pickled_app_keeps_its_delays(app: Any, broker: Broker, bide_store: ScratchStore) -> None:
    """Celery pickles it for spawned processes and for beat."""
    for number in range(3):
        app = pickle.loads(pickle.dumps(beat.Service(app))).app
        app.send_task("shop.expire", (number,), countdown=60)
        assert len(bide_store.pending("celery")) == number + 1
        assert isinstance(app.__bide_app__(), bide.App)
        app.control.revoke(bide_store.pending("celery")[-1].id)
        assert len(bide_store.pending("celery")) == number
        app.send_task("shop.expire", (number,), countdown=60)
    assert published(broker) == []


def test_protocol_1_is_refused(celery_app: Any) -> None:
    celery_app.conf.task_protocol = 1
    install(celery_app, "memory://celery-tests")
    with pytest.raises(bide.InvalidArgument, match="task_protocol = 2"):
        expire(celery_app).apply_async((1,), countdown=60)


def test_without_the_store_the_send_raises_and_nothing_goes_to_the_broker(
    celery_app: Any, broker: Broker
) -> None:
    install(celery_app, "unix:///nowhere/redis.sock?reconnect=1ms")
    with pytest.raises(bide.StoreError):
        expire(celery_app).apply_async((1,), countdown=60)
    assert broker.client.keys() == []
    expire(celery_app).delay(2)
    assert len(published(broker)) == 1


def test_a_retry_without_the_store_is_rejected_as_without_the_broker(celery_app: Any) -> None:
    install(celery_app, "unix:///nowhere/redis.sock?reconnect=1ms")
    task = expire(celery_app)
    task.push_request(id="a", args=[1], kwargs={}, called_directly=False, delivery_info={})
    with pytest.raises(Reject):
        task.retry(countdown=30)
    task.pop_request()


def test_install_takes_a_celery_app_and_only_once(app: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match="already"):
        install(app)
    with pytest.raises(bide.InvalidArgument, match=r"takes a celery\.Celery, not dict"):
        install({})


def test_install_reads_no_settings_and_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("lazy", set_as_current=False)
    install(app, "unix:///nowhere/redis.sock")
    assert not app.configured
    app.config_from_object({"task_default_queue": "later"})
    assert app.conf.task_default_queue == "later"
    app.close()
