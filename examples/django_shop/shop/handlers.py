"""What a worker does: `manage.py bide worker` finds this module."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F
from shop.models import Article, Order

import bide
from bide.contrib.django import Queue, app, group_of

__all__ = ["Deadline", "deadlines", "time_out", "unpaid"]

deadlines = Queue("deadlines")


def pay_within() -> timedelta:
    """Return how long a customer has to pay."""
    return timedelta(seconds=settings.PAY_SECONDS)


@dataclass
class Deadline:
    """The body of a message: the order that must be paid by now."""

    order: int

    @staticmethod
    def of(order: Order) -> bide.NewMessage:
        """Return the message of an order."""
        return bide.NewMessage(
            Deadline(order.pk),
            at=order.placed + pay_within(),
            id=f"order-{order.pk}",
            group=group_of(order),
        )


@app.handler("deadlines")
def time_out(deadline: Deadline) -> None:
    """Cancel an unpaid order. Idempotent: the second call finds no unpaid order."""
    with transaction.atomic():
        order = Order.objects.select_for_update().filter(pk=deadline.order, state="unpaid").first()
        if order is not None:
            Article.objects.filter(pk=order.article_id).update(stock=F("stock") + 1)
            order.state = "cancelled"
            order.save()


@app.source("deadlines", every="10m", window="1h")
def unpaid(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
    """Return the deadlines that should exist: they come back if the store was lost."""
    placed = (after - pay_within(), before - pay_within())
    for order in Order.objects.filter(state="unpaid", placed__range=placed).iterator():
        yield Deadline.of(order)
