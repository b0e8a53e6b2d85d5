"""Stores that releases have left behind: this version finds all in them, and works on."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count, product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import bide
from bide.model.ended import ENDINGS
from bide.model.message import STATES
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing import FakeClock, ManualWorker, ScratchStore
from tests.contract.stores import scene
from tests.contract.stores.kept import ENDED, KINDS, VERSIONS, content, restore
from tests.contract.stores.reading import missing, read
from tests.postgres_server import PostgresServer
from tests.system.server.client import Client
from tests.system.server.conftest import running

_databases = count()

RELEASES = [release for release in VERSIONS if ".dev" not in release]


class Kept:
    """A store that a release wrote."""

    def __init__(self, release: str, kind: str, url: str) -> None:
        self.url = url
        self.content = content(release, kind)
        self.clock = FakeClock(self.content["now"])
        restore(release, kind, url)


@pytest.fixture(params=[*product(VERSIONS, KINDS)], ids="-".join)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """Provide the store that a version wrote, also one before the first release."""
    yield from _restored(request, tmp_path)


@pytest.fixture(params=[*product(RELEASES, KINDS)], ids="-".join)
def of_release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """Provide the store that a release wrote."""
    yield from _restored(request, tmp_path)


def _restored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    release, kind = request.param
    if kind == "sqlite":
        yield Kept(release, kind, f"sqlite:///{tmp_path}/bide.db")
    elif kind == "redis":
        fresh: Callable[[], str] = request.getfixturevalue("redis_url")
        yield Kept(release, kind, fresh())
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        name = f"kept_{next(_databases)}"
        with server.client() as client:
            client.execute(f"CREATE DATABASE {name}".encode())
            yield Kept(release, kind, server.url.replace("/postgres?", f"/{name}?"))
            client.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_this_version_has_left_its_stores() -> None:
    assert version("bide") in VERSIONS, "make store-of-release"


def test_the_next_release_can_leave_one(tmp_path: Path) -> None:
    """So that `make store-of-release` works when it is needed, and leaves every kind of message."""
    clock, url = FakeClock(scene.START), f"sqlite:///{tmp_path}/bide.db"
    scene.fill(url, clock)
    told = read(url, clock, ENDED).values()
    assert {state for queue in told for state, found in queue["messages"].items() if found} == {
        *STATES
    }
    hows = {end["how"] for queue in told for ends in queue["ends"].values() for end in ends}
    assert hows == {*ENDINGS}


def test_all_that_was_in_it_is_found(kept: Kept) -> None:
    found = read(kept.url, kept.clock, kept.content["ended"])
    assert missing(kept.content["told"], found) == []
    messages = found["orders"]["messages"]
    assert len(messages["delayed"]) > 50
    assert all(messages[state] for state in ("delayed", "ready", "leased"))


def test_every_message_is_delivered_once_and_accounted_for(kept: Kept) -> None:
    told = kept.content["told"]
    with ScratchStore(kept.url, kept.clock) as store:
        bide.Queue("paused").resume()
        kept.clock.advance(100 * 86_400)
        for name in ("orders", "mail", "kept", "paused", "shop/orders"):
            queue, before = store.queue(name), told[name]["messages"]
            queue.revive()
            waiting = [one for state in WAITING for one in before[state]]
            wanted = {one["id"] for one in waiting if one["expires"] is None}
            seen: list[str] = []
            while deliveries := queue.claim(20):
                seen += [one.id for one in deliveries]
                assert all(queue.ack(deliveries))
            assert len(seen) == len({*seen})
            assert {*seen} >= wanted
            assert queue.audit(), queue.audit().problems
            assert queue.counts().sizes.total == 0


WAITING = ("delayed", "ready", "leased", "dead")


def test_it_is_changed_like_any_other(kept: Kept) -> None:
    with ScratchStore(kept.url, kept.clock) as store:
        orders, mail = store.queue("orders"), store.queue("mail")
        assert orders.put("again", id="plain").state == "delayed"  # it is there already
        assert orders.edit("all", priority=1)
        assert orders.reschedule("bytes", delay="1d")
        assert orders.cancel(group="customer:7") == 1
        assert orders.cancel("large")
        held = next(orders.scan("leased"))
        assert orders.release(held.id, reason="by hand")
        assert mail.purge(state="dead") > 2
        kept.clock.advance(3 * 3_600)
        (one,) = orders.claim(1)
        one.retry(delay=5, reason="later")
        assert orders.audit()
        assert mail.audit()


def test_its_limits_hold(kept: Kept) -> None:
    with ScratchStore(kept.url, kept.clock) as store:
        limited = store.queue("limited")
        assert limited.claim(5) == []  # as many are leased as may be
        kept.clock.advance(3_600)
        seen: list[str] = []
        for _ in range(100):
            deliveries = limited.claim(5)
            assert len({one.message.group for one in deliveries}) == len(deliveries) <= 3
            seen += [one.id for one in deliveries]
            limited.ack(deliveries)
            kept.clock.advance(1)
        assert len(seen) == 14
        assert limited.audit()


def test_what_was_debounced_goes_on(kept: Kept) -> None:
    with ScratchStore(kept.url, kept.clock) as store:
        edits = store.queue("edits")
        first = kept.content["told"]["edits"]["messages"]["delayed"][0]["created"]
        kept.clock.advance(240)
        outcome = edits.put(3, id="typed", delay="50m", latest="30m", on_conflict="replace")
        assert outcome.due == first + 30 * 60_000
        assert edits.release("held", reason="by hand")
        kept.clock.advance(2 * 3_600)
        assert {one.id: one.body for one in edits.claim(5)} == {"typed": 3, "held": "second"}


def test_rules_of_time_in_it_go_on(of_release: Kept) -> None:
    with ScratchStore(of_release.url, of_release.clock) as store:
        repeating = store.queue("repeating")
        clock = of_release.clock
        assert not repeating.put("again", id="cron")
        due = {message.id: message.due_at for message in repeating.scan("delayed")}
        assert due["cron"] == datetime(2030, 1, 7, 8, tzinfo=UTC)  # Monday at nine in Berlin
        assert due["date"] == datetime(2030, 6, 1, 7, tzinfo=UTC)
        on_hold = repeating.get("on hold")
        assert on_hold is not None
        assert on_hold.held
        seen: list[tuple[str, int]] = []
        while clock.now() < due["cron"].timestamp() * 1000:
            clock.advance(900)
            for delivery in repeating.claim(5):
                hour = delivery.message.due_at.astimezone(ZoneInfo("Europe/Berlin")).hour
                seen.append((delivery.id, hour))
                delivery.ack()
        assert [id for id, _ in seen].count("period") == 3
        assert [hour for id, hour in seen if id in ("window", "cron")] == [13, 9]
        assert repeating.resume("on hold")
        assert repeating.audit()


def test_what_runs_in_it_goes_on(of_release: Kept) -> None:
    with ScratchStore(of_release.url, of_release.clock) as store:
        running = store.queue("running")
        assert running.counts().overdue == "spread 10m"
        reporting = running.get("reports")
        assert reporting is not None
        assert reporting.progress is not None
        assert reporting.progress.text == "rows"
        assert "stop" in running.explain("stops").sentence
        of_release.clock.advance(600)  # the leases end
        assert {delivery.id for delivery in running.claim(5)} == {"reports", "repeats"}
        assert running.history("stops")[0].how == "cancelled"
        assert running.audit()


def test_its_closed_groups_stay_closed(of_release: Kept) -> None:
    with ScratchStore(of_release.url, of_release.clock) as store:
        closed = store.queue("closed")
        assert closed.put("x", id="paid", group="order:42").state == "closed"
        assert [group.group for group in closed.closed_groups()] == ["order:42"]
        assert closed.put("x", id="other", group="order:43")


def test_a_bulk_change_in_it_is_taken_back(kept: Kept) -> None:
    with ScratchStore(kept.url, kept.clock) as store:
        taken = store.queue("taken")
        assert taken.undo(kept.content["undo"]).restored == 3
        assert [one.body for one in taken.scan("delayed")] == [0, 1, 2]
        assert taken.audit()


def test_schedules_and_sources_go_on(kept: Kept) -> None:
    scene.ticks.clear()
    with ScratchStore(kept.url, kept.clock) as store, ManualWorker(scene.app, store) as worker:
        worker.advance("4h")
    assert sorted(scene.ticks) == ["hourly"] * 4 + ["remind"]


def test_its_tokens_and_subscriptions_are_valid(kept: Kept) -> None:
    server = ServerApp(Settings(store=kept.url, push=False), kept.clock)
    with running(server) as port, Client(port, server, kept.content["token"]) as client:
        told: Any = client.get("/v1/subscriptions").json["subscriptions"]
        assert [(one["name"], one["queue"], one["state"], one["reason"]) for one in told] == [
            ("hooks", "hooked", "paused", "moving")
        ]
        assert client.get("/v1/queues/orders").json["sizes"]["dead"] == 0
        assert client.with_token("bide_0123456789ab_x").get("/v1/queues").status == 401
