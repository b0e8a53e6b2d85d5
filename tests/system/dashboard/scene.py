"""A shop's store, with something on each page; for tests in a browser, and for pictures."""

import asyncio
import math
import random

import msgspec

import bide
from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Put
from bide.model.message import Item
from bide.model.parts import in_parts
from bide.model.past import KEPT_SLOTS, SLOT_MS, slot_id, slot_start
from bide.model.times import LATEST
from bide.observing.heartbeat import Busy, Report, put_report
from bide.observing.past import PAST, Counters, PastRecord, encode_record
from bide.observing.tally import Histogram
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription
from bide.worker.periodic.chain import id_of
from bide.worker.periodic.source import Asked, WindowBody, home_of
from bide.worker.periodic.ticks import SCHEDULE_ID, ScheduleBody

REFUSED = """ConnectionError: mail.example:25 refused the connection after {} s
Traceback (most recent call last):
  File "/app/shop/mail.py", line 42, in send
    server.connect(host, port)
ConnectionRefusedError: [Errno 111] Connection refused"""

ERRORS = (REFUSED, "ValueError: customer {} has no address", "TimeoutError: no answer after {} s")


def set_scene(url: str, orders: int = 2_000) -> None:
    """Fill a store.

    Args:
        url: of an empty store.
        orders: how many orders wait for their timeout.
    """
    chance = random.Random(7)
    _orders(url, orders, chance)
    _mail(url)
    with bide.Queue("reminders", url) as reminders:
        reminders.put_many(
            bide.NewMessage(
                {"meeting": n, "room": chance.choice(("blue", "green"))},
                delay=chance.uniform(900, 172_800),
                id=f"meeting-{n}",
                group=f"guest:{n % 50}",
            )
            for n in range(orders // 4)
        )
        reminders.put(
            {"report": "sales"},
            id="ann/weekly",
            repeat=bide.Cron("0 9 * * MON", "Europe/Berlin", times=10),
        )
    with bide.Queue("webhooks", url) as webhooks:
        webhooks.put_many(bide.NewMessage({"n": n}, delay=45.0 * n) for n in range(1, 60))
        webhooks.pause()
    _own(url)


def _orders(url: str, count: int, chance: random.Random) -> None:
    with bide.Queue("orders", url, holder="web1:4711") as queue:
        queue.put_many(
            bide.NewMessage(
                {
                    "order": 40_000 + n,
                    "total": round(chance.uniform(5, 250), 2),
                    "currency": "EUR",
                    "customer": {"id": n % 300, "card": "4711 0815 1234"},
                },
                delay=60 + chance.expovariate(1 / 14_000),
                id=f"order-{40_000 + n}",
                group=f"customer:{n % 300}",
                priority=n % 3,
            )
            for n in range(count)
        )
        queue.put_many(bide.NewMessage({"order": n}, id=f"order-{n}") for n in range(30))
        queue.ack(queue.claim(18, lease=900))
        queue.claim(12, lease=900)


def _mail(url: str) -> None:
    with bide.Queue("mail", url, holder="web2:815") as mail:
        mail.put_many(
            bide.NewMessage(
                {"to": f"customer-{n}@example.com", "template": "reminder"},
                id=f"mail-{n}",
                attempts=3,
                headers={"trace": f"4bf92f{n:04}", "authorization": "Bearer s3cr3t"},
            )
            for n in range(60)
        )
        taken = mail.claim(40, lease=900)
        for n, delivery in enumerate(taken[:28]):
            delivery.bury(ERRORS[min(n % 5, 2)].format(n))
        mail.retry(taken[28:32], "20m", REFUSED.format(31))
        mail.ack(taken[32:])


def beat(url: str) -> None:
    """Report that the workers are alive."""
    lateness = Histogram()
    lateness.observe(*[0.0008] * 900, *[0.004] * 95, *[0.02] * 5)
    works = {"web1:4711": ["mail", "orders"], "web2:815": ["mail", "reminders"]}
    lane = open_lane(url)
    busy = {"mail": Busy(4, 3, "mail-1", SYSTEM_CLOCK.now() - 192_000)}
    lane.call(put_report("web", Report(works, {"orders": lateness, "mail": lateness}, busy)))
    close_lane(lane)


def set_past(url: str) -> None:
    """Put what workers would have recorded in the last day."""
    lane, chance = open_lane(url), random.Random(7)
    now = SYSTEM_CLOCK.now()
    last, minute = slot_start(now, "minute"), SLOT_MS["minute"]
    put = done = failed = 0
    items: dict[str, Item] = {}
    for start in range(last - KEPT_SLOTS["minute"] * minute, last + 1, minute):
        rush = 1 + math.sin(start / SLOT_MS["hour"] / 24 * math.tau * 2)
        put, done = put + chance.randint(0, 9) + round(9 * rush), done + round(12 * rush)
        failed += chance.random() < 0.3
        late = Histogram()
        late.observe(*(chance.expovariate(1 / (0.01 + 0.2 * rush)) for _ in range(20)))
        counters = Counters(put, done, 0, 0, 0, failed, 0)
        record = PastRecord(start + 2_000, {"orders": counters}, {"orders": late.buckets})
        places = [slot_id(start, "minute")]
        if start == slot_start(start, "hour"):
            places.append(slot_id(start, "hour"))
        for place in places:
            items[place] = Item(place, encode_record(record), at=LATEST)
    for part in in_parts(list(items.values())):
        lane.call(Put(PAST, list(part)))
    close_lane(lane)


def _own(url: str) -> None:
    """Put what workers, schedules, sources and subscriptions leave in a store."""
    beat(url)
    lane = open_lane(url)
    now = SYSTEM_CLOCK.now()
    rule = bide.Cron("0 9 * * 1-5", "Europe/Paris")
    with bide.Queue("daily-report", url) as report:
        body = ScheduleBody(rule.text, rule.timezone, 3, now)
        report.put(msgspec.to_builtins(body), id=SCHEDULE_ID, repeat=rule)
    with bide.Queue(home_of("orders", "unpaid"), url) as windows:
        last = Asked(now - 60_000, now + 540_000, now - 3_000, 41, 7)
        windows.put(
            msgspec.to_builtins(WindowBody(now, 60_000, 600_000, last, 2_041)),
            delay=57,
            id=id_of(now),
        )
    hook = Subscription(name="shop", queue="webhooks", url="https://shop.example/hooks?key=abc")
    asyncio.run(Records(lane, SYSTEM_CLOCK).put(hook, None))
    close_lane(lane)
