"""Handlers run in the thread and on the connection of the test."""

import threading

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from bide.contrib.django import App, AsyncQueue, Queue
from bide.contrib.django.testing import BideTestMixin, DjangoWorker
from bide.testing import Handled, ManualWorker, ScratchStore
from kit import handlers
from kit.handlers import expire_order, expire_order_later, later, orders
from kit.models import Order


def outcomes(handled: list[Handled]) -> list[str]:
    """Return how deliveries ended, without the windows of sources."""
    return [one.outcome for one in handled if one.queue in ("orders", "later")]


class _Cases(BideTestMixin):
    def test_a_plain_handler_sees_what_the_test_saved(self) -> None:
        handlers.threads.clear()
        with transaction.atomic():
            order = Order.objects.create()
            orders.put({"order": order.pk}, delay="30m", id="a")
        self.bide_store.assert_put("orders", {"order": order.pk}, delay="30m")
        assert outcomes(self.bide_worker.advance("29m")) == []
        assert outcomes(self.bide_worker.advance("1m")) == ["acked"]
        order.refresh_from_db()
        assert order.state == "expired"
        assert set(handlers.threads) == {threading.current_thread()}

    def test_so_do_tasks(self) -> None:
        handlers.threads.clear()
        with transaction.atomic():
            first, second, third = (Order.objects.create() for _ in range(3))
            expire_order.later("30m", id="a", within=connection).put(first.pk)
            expire_order.later("30m", id="b").put(second.pk, state="late")
            expire_order_later.later("30m", id="c").put(third.pk)
        self.bide_worker.advance("29m")
        assert handlers.threads == []
        self.bide_worker.advance("1m")
        for order, state in ((first, "expired"), (second, "late"), (third, "expired")):
            order.refresh_from_db()
            assert order.state == state
        assert set(handlers.threads) == {threading.current_thread()}

    def test_so_does_an_async_handler(self) -> None:
        order = Order.objects.create()
        later.put({"order": order.pk}, delay="30m")
        assert outcomes(self.bide_worker.advance("30m")) == ["acked"]
        order.refresh_from_db()
        assert order.state == "expired"

    def test_so_do_batches(self) -> None:
        app, threads = App(), set[threading.Thread]()

        @app.handler("plain", batch=2)
        def expire(bodies: list[int]) -> None:
            threads.add(threading.current_thread())
            assert Order.objects.filter(pk__in=bodies).update(state="expired") == 2

        @app.handler("async", batch=2)
        async def pay(bodies: list[int]) -> None:
            assert await Order.objects.filter(pk__in=bodies).aupdate(state="paid") == 2

        for queue, state in (("plain", "expired"), ("async", "paid")):
            some = [Order.objects.create() for _ in range(2)]
            self.bide_store.queue(queue).put_many([order.pk for order in some])
            handled = DjangoWorker(app, self.bide_store, queues=[queue]).run_due()
            assert [one.outcome for one in handled] == ["acked", "acked"]
            for order in some:
                order.refresh_from_db()
                assert order.state == state
        assert threads == {threading.current_thread()}

    async def test_in_an_async_test(self) -> None:
        order = await Order.objects.acreate()
        queue = AsyncQueue("orders")
        await queue.put({"order": order.pk}, delay="30m")
        assert outcomes(await self.bide_worker.aadvance("30m")) == ["acked"]
        await order.arefresh_from_db()
        assert order.state == "expired"

    def test_a_source_reads_what_the_test_saved(self) -> None:
        handlers.threads.clear()
        order = Order.objects.create(state="asked")
        self.bide_worker.advance("1h")
        assert f"order-{order.pk}" in [one.id for one in self.bide_store.pending("orders")]
        assert set(handlers.threads) == {threading.current_thread()}

    def test_what_a_handler_returns_is_kept(self) -> None:
        Order.objects.create(state="paid")
        with Queue("reports", result_ttl="1h") as reports:
            with transaction.atomic():
                reports.put("paid", id="a")
            self.bide_worker.run_due()
            assert reports.result("a") == 1

    def test_what_a_handler_raises_is_raised(self) -> None:
        orders.put({"order": 0}, id="a")
        try:
            self.bide_worker.run_due()
        except LookupError as error:
            assert "no such unpaid order" in str(error)
        else:
            raise AssertionError("nothing was raised")
        assert outcomes(self.bide_worker.handled) == ["retried"]


class Workers(TransactionTestCase):
    @override_settings(DEBUG=True)
    def test_the_queries_that_django_notes_do_not_add_up(self) -> None:
        app, noted = App(), set[int]()

        @app.handler("noting")
        def note(body: None) -> None:
            Order.objects.exists()
            noted.add(len(connection.queries))

        with ScratchStore() as store, ManualWorker(app, store) as worker:
            store.queue("noting").put_many([None] * 5)
            worker.run_due()
        assert noted == {1}


class InATransaction(_Cases, TestCase):
    pass


class WithoutATransaction(_Cases, TransactionTestCase):
    pass


@override_settings(BIDE={"URL": "redis://localhost:1/0"})
class WhereTheStoreIsElsewhere(_Cases, TestCase):
    """The store of the test is used all the same."""
