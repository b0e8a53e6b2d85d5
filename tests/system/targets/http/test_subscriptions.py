"""Subscriptions: what they may be, what changes at once, how secrets are kept and rotate."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from bide.model.commands import Put, Scan
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Page
from bide.model.times import LATEST
from bide.server.settings import Settings
from bide.server.subscriptions.pushing import Pushing
from bide.server.subscriptions.subscription_wire import subscriptions_out
from bide.targets.http import records
from bide.targets.http.encryption import KEY, KEY_FILE, LOST, SecretKeys, new_key
from bide.targets.http.receiver import Circuit
from bide.targets.http.records import SUBSCRIPTIONS, Overtaken, Records
from bide.targets.http.subscription import Subscription, new_secret
from tests.system.targets.http.environment import Stage, until
from tests.system.targets.http.receiver import Got, answer, receiver

DAY = 86_400_000


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "name="),
        ({"name": "a/b"}, "not in the namespace"),
        ({"name": "a/b/c"}, "name="),
        ({"name": "bide.server/a", "queue": "bide.server/q"}, "name="),
        ({"queue": "a/b"}, "not in the namespace"),
        ({"queue": "no way"}, "queue="),
        ({"url": "ftp://example.org"}, "url must begin"),
        ({"url": "example.org/hook"}, "url must begin"),
        ({"url": "https://"}, "url must begin"),
        ({"url": "https://user:hushhush@example.org"}, "authorization header"),
        ({"url": "https://user:hushhush/x@example.org"}, "url is not valid: its host or port"),
        ({"url": "https://example.org/#x"}, "fragment"),
        ({"url": "https://example.org:99999/"}, "url is not valid"),
        ({"url": "https://example.org/a b"}, "url must be"),
        ({"url": "https://exämple.org/"}, "url must be"),
        ({"url": "https://[::1/"}, "url is not valid"),
        ({"headers": {"Host": "x"}}, "is set by bide"),
        ({"headers": {"Webhook-Id": "x"}}, "is set by bide"),
        ({"headers": {"Content-Type": "x"}}, "is set by bide"),
        ({"headers": {"a b": "x"}}, "printable ASCII"),
        ({"headers": {"a": "x\r\ny: z"}}, "printable ASCII"),
        ({"headers": {f"a{n}": "x" for n in range(51)}}, "50 is the most"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"rate": 0}, "rate=0"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": 300_001}, "timeout="),
        ({"attempts": 0}, "attempts=0"),
        ({"failures": 0}, "failures=0"),
        ({"probe": 0}, "probe=0"),
        ({"ceiling": 1}, "ceiling"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    given = {"name": "shop", "queue": "q", "url": "https://example.org/hook", **fields}
    with pytest.raises(InvalidArgument, match=said) as caught:
        Subscription(**given).check()
    assert "hushhush" not in str(caught.value)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_abc", "x" * 40, "whsec_" + "A" * 200])
def test_a_secret_that_is_none_is_refused_and_not_repeated(stage: Stage, secret: str) -> None:
    async def story() -> None:
        await stage.subscribe("https://example.org/")
        with pytest.raises(InvalidArgument, match="secret must be") as caught:
            await stage.records.rotate("shop", DAY, secret)
        assert not secret or secret == "whsec_" or secret not in str(caught.value)

    stage.play(story())


def test_a_secret_is_made_once_and_kept_when_the_subscription_changes(stage: Stage) -> None:
    async def story() -> None:
        given = Subscription(name="shop", queue="q", url="https://example.org/")
        first, secret, fresh = await stage.records.put(given)
        assert (await stage.records.put(given)) == (first, None, False)  # as it was
        changed = msgspec.structs.replace(given, concurrency=3)
        again, none, _ = await stage.records.put(changed)
        assert secret is not None
        assert fresh
        assert none is None
        assert again.secrets == first.secrets
        assert again.created == first.created
        assert again.changed > first.changed
        assert secret not in repr(again) + repr(again.secrets)

    stage.play(story())


def test_secrets_rotate_with_overlap(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, worker):
            old = stage.secret
            rotated = await stage.records.rotate("shop", DAY)
            assert rotated is not None
            new = rotated.subscription.secrets[0].text
            assert rotated.secret == new
            await stage.pass_time(lambda: len(worker.subscription.secrets) == 2)
            await stage.put(1, id="both")
            await stage.acked(1)
            got = it.got[-1]
            for secret in (old, new):
                Webhook(secret).verify(got.body, got.headers)
            assert got.headers["webhook-signature"].count("v1,") == 2
            # When the overlap is over, nothing is signed with the old one any more.
            stage.clock.advance(DAY / 1000)
            await stage.put(2, id="new")
            await stage.acked(2)
            got = it.got[-1]
            assert got.headers["webhook-signature"].count("v1,") == 1
            stamp = str(int(got.headers["webhook-timestamp"]) - DAY // 1000)
            with pytest.raises(WebhookVerificationError, match="No matching"):
                Webhook(old).verify(got.body, {**got.headers, "webhook-timestamp": stamp})

    stage.play(story())


def test_a_secret_that_leaked_can_be_replaced_at_once(stage: Stage) -> None:
    async def story() -> None:
        await stage.subscribe("https://example.org/")
        mine = new_secret()
        rotated = await stage.records.rotate("shop", 0, mine)
        assert rotated is not None
        assert rotated.secret is None
        assert rotated.subscription.valid(stage.clock.now()) == [mine]

    stage.play(story())


def test_a_put_with_the_secret_that_it_has_changes_nothing(stage: Stage) -> None:
    async def story() -> None:
        mine = new_secret()
        given = Subscription(name="shop", queue="q", url="https://example.org/")
        first = await stage.records.put(given, mine)
        stage.clock.advance(5)
        assert (await stage.records.put(given, mine)).subscription == first.subscription
        changed = await stage.records.put(given, new_secret())
        assert len(changed.subscription.secrets) == 1
        assert changed.subscription.valid(0) != [mine]

    stage.play(story())


def test_no_more_than_five_secrets_count_at_a_time(stage: Stage) -> None:
    async def story() -> None:
        await stage.subscribe("https://example.org/")
        for _ in range(8):
            await stage.records.rotate("shop", DAY)
        subscription = await stage.records.get("shop")
        assert subscription is not None
        assert len(subscription.valid(stage.clock.now())) == 5

    stage.play(story())


def test_new_subscriptions_are_noticed(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it, stage.pushing() as pusher:
            await stage.put(1)
            await stage.subscribe(it.url)
            looked = pusher.looked
            await stage.pass_time(lambda: pusher.workers)
            assert pusher.looked - looked <= 2
            await stage.acked(1)
            assert list(pusher.workers) == ["shop"]

    stage.play(story())


def test_a_change_counts_for_the_next_message_though_nobody_has_looked(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as other, stage.at_work() as (it, _):
            await stage.put(1, id="a")
            await stage.acked(1)
            await stage.subscribe(other.url)
            await stage.put(2, id="b")
            await stage.pass_time(lambda: stage.counts().flow.acked == 2)
            assert ([got.id for got in it.got], [got.id for got in other.got]) == (["a"], ["b"])

    stage.play(story())


@pytest.mark.parametrize("status", [410, 503, 429])
def test_what_a_receiver_still_answers_is_nothing_of_the_one_that_follows_it(
    stage: Stage, status: int
) -> None:
    async def story() -> None:
        fields: dict[str, Any] = {"failures": 2, "probe": 600_000, "concurrency": 3}
        async with receiver() as other, stage.at_work(**fields) as (it, worker):
            gate = asyncio.Event()

            async def hold(got: Got, _: object) -> bytes:
                await gate.wait()
                return answer(status, retry_after="600")

            it.script = hold
            await stage.put(1, 2, 3)
            await until(lambda: it.under_way == 3)
            await stage.subscribe(other.url, **fields)
            await stage.pass_time(lambda: worker.subscription.url == other.url)
            gate.set()
            await until(lambda: worker.deliveries.answers)
            await stage.put(4, id="next")
            await until(lambda: [got.id for got in other.got].count("next") == 1)
            assert worker.circuit.since is None
            kept = await stage.records.get("shop")
            assert kept is not None
            assert not kept.paused

    stage.play(story())


def test_what_another_server_tells_late_is_of_the_receiver_that_it_was_about(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as other, stage.at_work() as (_, worker):
            before, after = worker.subscription, await stage.subscribe(other.url)
            tell = stage.records.peers.store_circuits
            now = stage.clock.now()
            opened = Circuit(5, now, now + DAY, DAY, "503", changed=now + 1)
            await tell({"shop": msgspec.structs.replace(opened, tag=before.tag)})
            await stage.pass_time(lambda: worker.subscription == after, step=1)
            await stage.put(1, id="a")
            await stage.pass_time(lambda: stage.counts().flow.acked == 1)
            assert worker.circuit.since is None
            idle = Pushing(stage.lane, stage.clock, Settings())
            (told,) = (await idle.known()).values()
            assert told.circuit.state(stage.clock.now()) == "closed"
            (out,) = await subscriptions_out(stage.records, [after], now)
            assert out.state == "active"
            await stage.pass_time(lambda: stage.circuit().tag == after.tag)
            await tell({"shop": msgspec.structs.replace(opened, tag=after.tag)})
            await stage.pass_time(lambda: worker.circuit.since is not None)

    stage.play(story())


def test_deletion_stops_at_once_and_messages_stay(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url)
            async with stage.pushing() as pusher:
                await stage.put(1, id="a")
                await stage.acked(1)
                assert await stage.records.delete("shop")
                assert not await stage.records.delete("shop")
                await stage.put(2, 3)  # the clock stands still: nobody has looked by himself
                await until(lambda: not pusher.workers)
                await until(lambda: stage.counts().sizes.ready == 2)
                assert (await stage.find("m0")).attempt == 0
                assert len(it.got) == 1

    stage.play(story())


def test_figures_of_a_deleted_subscription_are_not_kept(stage: Stage) -> None:
    """Else they would grow without end: each may have another name."""

    async def story() -> None:
        async with receiver() as it, stage.pushing() as pusher:
            for number in range(3):
                await stage.subscribe(it.url)
                await stage.pass_time(lambda: pusher.workers)
                await stage.put(1, id=f"m{number}")
                await stage.acked(number + 1)
                assert "shop" in pusher.sent.deliveries
                await stage.records.delete("shop")
                await stage.pass_time(lambda: not pusher.sent.deliveries)
            assert pusher.sent.tallies == {}

    stage.play(story())


def test_a_paused_subscription_sends_nothing_until_it_is_resumed(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, worker):
            await stage.records.pause("shop", "for the night")
            await stage.put(1)
            await until(lambda: worker.subscription.paused)
            await until(lambda: stage.counts().sizes.ready == 1)
            assert it.got == []
            await stage.records.resume("shop")
            await stage.pass_time(lambda: stage.counts().flow.acked == 1)

    stage.play(story())


def test_another_queue_is_another_worker(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, _):
            await stage.subscribe(it.url, queue="other")
            await stage.put(1, queue="other")
            await stage.pass_time(lambda: it.got)
            await stage.acked(1, "other")
            assert it.got[0].headers["bide-queue"] == "other"

    stage.play(story())


def test_subscriptions_are_listed_by_name(stage: Stage) -> None:
    async def story() -> None:
        for name, queue in (("b", "q"), ("team/a", "team/q"), ("a", "q")):
            await stage.subscribe("https://example.org/", name=name, queue=queue)
        found = await stage.records.listed()
        assert [one.name for one in found] == ["a", "b", "team/a"]
        assert [one.namespace for one in found] == [None, None, "team"]
        assert await stage.records.get("team/b") is None

    stage.play(story())


def test_a_ping_is_signed_and_tells_what_the_receiver_said(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            subscription = await stage.subscribe(it.url)
            async with stage.pushing() as pusher:
                answer = await pusher.ping(subscription)
            assert (answer.status, answer.good) == (204, True)
            got = it.got[0]
            assert Webhook(stage.secret).verify(got.body, got.headers) == {"type": "bide.ping"}
            assert got.headers["webhook-id"].startswith("ping/")

    stage.play(story())


def test_a_store_that_is_away_is_waited_for(stage: Stage) -> None:
    from bide.model.errors import StoreUnavailable

    async def story() -> None:
        async with stage.at_work() as (it, _):
            fault = stage.engine.fail(lambda: StoreUnavailable("gone for lunch"), times=20)
            await stage.pass_time(lambda: fault.struck == 20)
            await stage.put(1)
            await stage.pass_time(lambda: stage.counts().flow.acked == 1)
            assert len(it.got) == 1

    stage.play(story())


def test_a_subscription_is_one_message_however_often_it_changes(stage: Stage) -> None:
    def kept() -> int:
        return stage.counts(SUBSCRIPTIONS).sizes.total

    async def story() -> None:
        first = await stage.subscribe("https://example.org/")
        changed = await stage.records.change("shop", concurrency=3)
        assert await stage.records.get("shop") == changed
        assert await stage.records.listed() == [changed]
        assert not await stage.records.is_unchanged(first)
        assert kept() == 1
        with pytest.raises(Overtaken):
            await stage.records.delete("shop", first.tag)
        assert await stage.records.delete("shop")
        assert not await stage.records.delete("shop")
        assert kept() == 0

    stage.play(story())


def test_of_two_who_write_at_a_time_one_has_it(stage: Stage) -> None:
    async def story() -> None:
        known = await stage.subscribe("https://example.org/")
        changes = [
            stage.records.change("shop", known.tag, concurrency=number) for number in range(11, 31)
        ]
        done = await asyncio.gather(*changes, return_exceptions=True)
        (kept,) = [one for one in done if isinstance(one, Subscription)]
        assert all(isinstance(one, Overtaken) for one in done if one is not kept)
        assert await stage.records.get("shop") == kept
        # Without a version each of them is made after another, and none is lost.
        rotations = [stage.records.rotate("shop", DAY) for _ in range(4)]
        texts = {rotated.secret for rotated in await asyncio.gather(*rotations) if rotated}
        last = await stage.records.get("shop")
        assert last is not None
        assert texts < set(last.valid(stage.clock.now()))

    stage.play(story())


def test_a_store_has_a_limit_of_subscriptions(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(records, "MAX_SUBSCRIPTIONS", 2)
        for name in ("a", "b", "b"):  # a change is not one more
            await stage.subscribe("https://shop.example/hook", name=name)
        with pytest.raises(InvalidArgument, match="a store has 2 subscriptions at most"):
            await stage.subscribe("https://shop.example/hook", name="c")

    stage.play(story())


URL = "https://shop.example:8443/hush-path?apikey=hush-query"
AMQP = "amqp://app:hush-password@mq.example/vhost?exchange=shop"
HUSH = ("hush-path", "hush-query", "hush-password", "hush-header", "whsec_")


@pytest.fixture
def encrypting(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "bide.db")


async def stored(encrypting: Stage) -> str:
    """Return all that the store has of subscriptions."""
    page = await encrypting.lane.acall(Scan(SUBSCRIPTIONS, limit=1_000))
    assert isinstance(page, Page)
    return "\n".join(message.data.decode() for message in page.messages)


async def fill(records: Records) -> list[Subscription]:
    headers = {"authorization": "Bearer hush-header"}
    await records.put(Subscription(name="shop", queue="q", url=URL, headers=headers))
    await records.put(Subscription(name="broker", queue="b", url=AMQP))
    return await records.listed()


def test_the_store_has_no_secret_in_clear_text(encrypting: Stage) -> None:
    records = Records(encrypting.lane, encrypting.clock, SecretKeys([new_key()]))

    async def story() -> None:
        broker, shop = await fill(records)
        assert (shop.url, broker.url) == (URL, AMQP)
        assert shop.headers == {"authorization": "Bearer hush-header"}
        assert shop.secrets[0].text.startswith("whsec_")
        assert await records.get("shop") == shop
        text = await stored(encrypting)
        assert not [word for word in HUSH if word in text]
        assert "https://shop.example:8443/***" in text

    encrypting.play(story())
    on_disk = encrypting.path.read_bytes()
    assert not [word for word in HUSH if word.encode() in on_disk]


def test_old_ones_keep_working_and_are_encrypted_at_rotation(encrypting: Stage) -> None:
    old, new = new_key(), new_key()

    async def story() -> None:
        before = await fill(Records(encrypting.lane, encrypting.clock, SecretKeys()))
        text = await stored(encrypting)
        assert all(word in text for word in HUSH)
        for keys in ([old], [new, old]):
            records = Records(encrypting.lane, encrypting.clock, SecretKeys(keys))
            assert [one.url for one in await records.listed()] == [AMQP, URL]
            assert await records.encrypt_all() == (2, 0)
            text = await stored(encrypting)
            assert not any(word in text for word in HUSH)
        after = await Records(encrypting.lane, encrypting.clock, SecretKeys([new])).listed()
        for one, other in zip(before, after, strict=True):
            assert (one.url, one.headers, one.secrets) == (other.url, other.headers, other.secrets)
        lost = Records(encrypting.lane, encrypting.clock, SecretKeys([old]))
        assert [one.reason for one in await lost.listed()] == [LOST, LOST]
        with pytest.raises(InvalidArgument, match="no key to encrypt with"):
            await Records(encrypting.lane, encrypting.clock, SecretKeys()).encrypt_all()

    encrypting.play(story())


@pytest.mark.parametrize("others", [[], [new_key()]])
def test_a_lost_key_pauses_and_loses_nothing(encrypting: Stage, others: list[str]) -> None:
    key = SecretKeys([new_key()])

    async def story() -> None:
        records = Records(encrypting.lane, encrypting.clock, key)
        _, before = await fill(records)
        await records.pause("broker", "their release")
        lost = Records(encrypting.lane, encrypting.clock, SecretKeys(others))
        for one in await lost.listed():
            assert (one.paused, one.reason, one.headers, one.secrets) == (True, LOST, {}, ())
        changed = await lost.change("shop", concurrency=3)
        assert changed is not None
        assert (changed.paused, changed.reason) == (True, LOST)
        for fields in ({"url": "https://evil.example"}, {"headers": {"a": "b"}}):
            with pytest.raises(InvalidArgument, match="'shop' cannot be changed"):
                await lost.change("shop", **fields)
        with pytest.raises(InvalidArgument, match="cannot be changed"):
            await lost.rotate("shop", 0)
        if others:
            assert await lost.encrypt_all() == (0, 2)
        broker, shop = await Records(encrypting.lane, encrypting.clock, key).listed()
        assert (shop.paused, shop.concurrency, shop.url) == (False, 3, URL)
        assert (shop.headers, shop.secrets) == (before.headers, before.secrets)
        assert (broker.paused, broker.reason) == (True, "their release")

    encrypting.play(story())


def test_a_lost_one_may_be_put_again_and_deleted(encrypting: Stage) -> None:
    async def story() -> None:
        records = Records(encrypting.lane, encrypting.clock, SecretKeys([new_key()]))
        await fill(records)
        await records.pause("shop", "their release")
        lost = Records(encrypting.lane, encrypting.clock, SecretKeys([new_key()]))
        kept = await lost.put(Subscription(name="shop", queue="q", url=URL))
        assert kept.secret is not None
        assert (kept.subscription.paused, kept.subscription.reason) == (True, "their release")
        assert await lost.delete("broker")
        [shop] = await lost.listed()
        assert (shop.url, shop.encrypted) == (URL, "")

    encrypting.play(story())


def test_nothing_is_sent_without_the_key_and_all_with_it(encrypting: Stage) -> None:
    key = new_key()

    async def story() -> None:
        async with receiver() as shop:
            encrypting.records = Records(encrypting.lane, encrypting.clock, SecretKeys([key]))
            await encrypting.subscribe(shop.url)
            await encrypting.put("m")
            async with encrypting.pushing() as pusher:
                [one] = await pusher.records.listed()
                assert (await pusher.ping(one)).text == LOST
                looked = pusher.looked
                await encrypting.pass_time(lambda: pusher.looked > looked + 2)
            assert shop.got == []
            assert encrypting.counts().sizes.total == 1

    encrypting.play(story())


def test_the_environment_gives_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, file = new_key(), new_key(), tmp_path / "keys"
    monkeypatch.setenv(KEY, f"{one} {two}")
    assert SecretKeys.of_environment()
    monkeypatch.setenv(KEY, "hush-no-key")
    with pytest.raises(InvalidArgument, match="is not a key: bide subscription new-key") as told:
        SecretKeys.of_environment()
    assert "hush" not in str(told.value)
    monkeypatch.setenv(KEY_FILE, str(file))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        SecretKeys.of_environment()
    file.write_text("\n")
    with pytest.raises(InvalidArgument, match="is empty"):
        SecretKeys.of_environment()
    file.write_text(f"{one}\n{two}\n")
    assert SecretKeys.of_environment()
    monkeypatch.delenv(KEY_FILE)
    monkeypatch.delenv(KEY)
    assert not SecretKeys.of_environment()


def test_a_subscription_without_a_key_warns(
    encrypting: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def story() -> None:
        async with encrypting.pushing() as pusher:
            assert "stored in clear text" not in caplog.text
            await encrypting.subscribe("https://shop.example/")
            await encrypting.pass_time(lambda: pusher.workers)
            assert "stored in clear text" in caplog.text

    encrypting.play(story())


@pytest.mark.parametrize("data", [b"null", b'{"name": "shop"}', b'{"name": 7', b"[]"])
def test_a_damaged_record_is_shown_as_paused_and_may_be_put_again(
    encrypting: Stage, data: bytes
) -> None:
    async def story() -> None:
        item = Item("shop", data, True, at=LATEST)
        await encrypting.lane.acall(Put(SUBSCRIPTIONS, [item]))
        [damaged] = await encrypting.records.listed()
        assert (damaged.name, damaged.paused, damaged.reason) == ("shop", True, LOST)
        await encrypting.subscribe(URL)
        [shop] = await encrypting.records.listed()
        assert (shop.url, shop.paused) == (URL, False)

    encrypting.play(story())
