"""The fixture of bide together with pytest-django, with and without transactions."""

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from kit import handlers
from kit.handlers import later, orders
from kit.models import Order


def play(bide_django_worker: Any, bide_store: Any) -> None:
    handlers.threads.clear()
    with transaction.atomic():
        one, two = Order.objects.create(), Order.objects.create()
        orders.put({"order": one.pk}, delay="30m")
        later.put({"order": two.pk}, delay="30m")
    bide_store.assert_put("orders", {"order": one.pk}, delay="30m")
    bide_django_worker.advance("30m")
    assert set(Order.objects.values_list("state", flat=True)) == {"expired"}
    assert set(handlers.threads) == {threading.current_thread()}


@pytest.mark.django_db
def test_in_a_transaction(bide_django_worker: Any, bide_store: Any) -> None:
    assert connection.in_atomic_block
    play(bide_django_worker, bide_store)


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction(bide_django_worker: Any, bide_store: Any) -> None:
    assert not connection.in_atomic_block
    play(bide_django_worker, bide_store)
