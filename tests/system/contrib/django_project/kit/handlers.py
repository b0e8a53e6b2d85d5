import threading
from collections.abc import Iterator
from datetime import datetime

import bide
from bide.contrib.django import Queue, app
from kit.models import Order

orders = Queue("orders")
later = Queue("later")
threads: list[threading.Thread] = []


@app.handler("orders", retry=bide.Backoff(attempts=2, first="1s"))
def expire(body: dict[str, int]) -> None:
    threads.append(threading.current_thread())
    if not Order.objects.filter(pk=body["order"], state="unpaid").update(state="expired"):
        raise LookupError("there is no such unpaid order")


@app.handler("later")
async def expire_later(body: dict[str, int]) -> None:
    order = await Order.objects.aget(pk=body["order"])
    order.state = "expired"
    await order.asave()


@app.handler("reports")
def report(state: str) -> int:
    return int(Order.objects.filter(state=state).count())


@app.task(retry=bide.Backoff(attempts=2, first="1s"))
def expire_order(order: int, *, state: str = "expired") -> None:
    threads.append(threading.current_thread())
    Order.objects.filter(pk=order, state="unpaid").update(state=state)


@app.task
async def expire_order_later(order: int) -> None:
    await Order.objects.filter(pk=order, state="unpaid").aupdate(state="expired")


@app.source("orders", every="1h", window="2h")
def unpaid(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
    for order in Order.objects.filter(state="asked"):
        threads.append(threading.current_thread())
        Order.objects.filter(pk=order.pk).update(state="found")
        yield bide.NewMessage({"order": order.pk}, at=before, id=f"order-{order.pk}")
