"""Secrets at rest: encrypted in the store, with rotation, and nothing lost with the key."""

import logging
from pathlib import Path

import pytest

from bide.model.commands import Put, Scan
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Page
from bide.model.times import LATEST
from bide.targets.http.encryption import KEY, KEY_FILE, LOST, SecretKeys, new_key
from bide.targets.http.records import SUBSCRIPTIONS, Records
from bide.targets.http.subscription import Subscription
from tests.targets.http.environment import Stage
from tests.targets.http.receiver import receiver

URL = "https://shop.example:8443/hush-path?apikey=hush-query"
AMQP = "amqp://app:hush-password@mq.example/vhost?exchange=shop"
HUSH = ("hush-path", "hush-query", "hush-password", "hush-header", "whsec_")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "bide.db")


async def stored(stage: Stage) -> str:
    """Return all that the store has of subscriptions."""
    page = await stage.lane.acall(Scan(SUBSCRIPTIONS, limit=1_000))
    assert isinstance(page, Page)
    return "\n".join(message.data.decode() for message in page.messages)


async def fill(records: Records) -> list[Subscription]:
    headers = {"authorization": "Bearer hush-header"}
    await records.put(Subscription(name="shop", queue="q", url=URL, headers=headers))
    await records.put(Subscription(name="broker", queue="b", url=AMQP))
    return await records.listed()


def test_the_store_has_no_secret_in_clear_text(stage: Stage) -> None:
    records = Records(stage.lane, stage.clock, SecretKeys([new_key()]))

    async def story() -> None:
        broker, shop = await fill(records)
        assert (shop.url, broker.url) == (URL, AMQP)
        assert shop.headers == {"authorization": "Bearer hush-header"}
        assert shop.secrets[0].text.startswith("whsec_")
        assert await records.get("shop") == shop
        text = await stored(stage)
        assert not [word for word in HUSH if word in text]
        assert "https://shop.example:8443/***" in text

    stage.play(story())
    on_disk = stage.path.read_bytes()
    assert not [word for word in HUSH if word.encode() in on_disk]


def test_old_ones_keep_working_and_are_encrypted_at_rotation(stage: Stage) -> None:
    old, new = new_key(), new_key()

    async def story() -> None:
        before = await fill(Records(stage.lane, stage.clock, SecretKeys()))
        text = await stored(stage)
        assert all(word in text for word in HUSH)
        for keys in ([old], [new, old]):
            records = Records(stage.lane, stage.clock, SecretKeys(keys))
            assert [one.url for one in await records.listed()] == [AMQP, URL]
            assert await records.encrypt_all() == (2, 0)
            text = await stored(stage)
            assert not any(word in text for word in HUSH)
        after = await Records(stage.lane, stage.clock, SecretKeys([new])).listed()
        for one, other in zip(before, after, strict=True):
            assert (one.url, one.headers, one.secrets) == (other.url, other.headers, other.secrets)
        lost = Records(stage.lane, stage.clock, SecretKeys([old]))
        assert [one.reason for one in await lost.listed()] == [LOST, LOST]
        with pytest.raises(InvalidArgument, match="no key to encrypt with"):
            await Records(stage.lane, stage.clock, SecretKeys()).encrypt_all()

    stage.play(story())


@pytest.mark.parametrize("others", [[], [new_key()]])
def test_a_lost_key_pauses_and_loses_nothing(stage: Stage, others: list[str]) -> None:
    key = SecretKeys([new_key()])

    async def story() -> None:
        records = Records(stage.lane, stage.clock, key)
        _, before = await fill(records)
        await records.pause("broker", "their release")
        lost = Records(stage.lane, stage.clock, SecretKeys(others))
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
        broker, shop = await Records(stage.lane, stage.clock, key).listed()
        assert (shop.paused, shop.concurrency, shop.url) == (False, 3, URL)
        assert (shop.headers, shop.secrets) == (before.headers, before.secrets)
        assert (broker.paused, broker.reason) == (True, "their release")

    stage.play(story())


def test_a_lost_one_may_be_put_again_and_deleted(stage: Stage) -> None:
    async def story() -> None:
        records = Records(stage.lane, stage.clock, SecretKeys([new_key()]))
        await fill(records)
        await records.pause("shop", "their release")
        lost = Records(stage.lane, stage.clock, SecretKeys([new_key()]))
        kept = await lost.put(Subscription(name="shop", queue="q", url=URL))
        assert kept.secret is not None
        assert (kept.subscription.paused, kept.subscription.reason) == (True, "their release")
        assert await lost.delete("broker")
        [shop] = await lost.listed()
        assert (shop.url, shop.encrypted) == (URL, "")

    stage.play(story())


def test_nothing_is_sent_without_the_key_and_all_with_it(stage: Stage) -> None:
    key = new_key()

    async def story() -> None:
        async with receiver() as shop:
            stage.records = Records(stage.lane, stage.clock, SecretKeys([key]))
            await stage.subscribe(shop.url)
            await stage.put("m")
            async with stage.pushing() as pusher:
                [one] = await pusher.records.listed()
                assert (await pusher.ping(one)).text == LOST
                looked = pusher.looked
                await stage.pass_time(lambda: pusher.looked > looked + 2)
            assert shop.got == []
            assert stage.counts().sizes.total == 1

    stage.play(story())


def test_the_environment_gives_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, file = new_key(), new_key(), tmp_path / "keys"
    monkeypatch.setenv(KEY, f"{one} {two}")
    assert SecretKeys.of_environment()
    monkeypatch.setenv(KEY, "hush-no-key")
    with pytest.raises(InvalidArgument, match="no key; bide subscription new-key") as told:
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


def test_a_subscription_without_a_key_warns(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def story() -> None:
        async with stage.pushing() as pusher:
            assert "stored in clear text" not in caplog.text
            await stage.subscribe("https://shop.example/")
            await stage.pass_time(lambda: pusher.workers)
            assert "stored in clear text" in caplog.text

    stage.play(story())


@pytest.mark.parametrize("data", [b"null", b'{"name": "shop"}', b'{"name": 7', b"[]"])
def test_a_damaged_record_is_shown_as_paused_and_may_be_put_again(
    stage: Stage, data: bytes
) -> None:
    async def story() -> None:
        item = Item("shop", data, True, at=LATEST)
        await stage.lane.acall(Put(SUBSCRIPTIONS, [item]))
        [damaged] = await stage.records.listed()
        assert (damaged.name, damaged.paused, damaged.reason) == ("shop", True, LOST)
        await stage.subscribe(URL)
        [shop] = await stage.records.listed()
        assert (shop.url, shop.paused) == (URL, False)

    stage.play(story())
