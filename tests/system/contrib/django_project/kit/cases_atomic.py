"""Handlers and tasks with `atomic=True`, by a real worker on the database of the tests."""

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.test import TransactionTestCase

import bide
from bide.contrib.django import App
from bide.contrib.django.testing import close_connections
from kit.handlers import orders
from kit.models import Order


class Atomic(TransactionTestCase):
    @classmethod
    def tearDownClass(cls) -> None:
        close_connections()
        super().tearDownClass()

    def setUp(self) -> None:
        self.app = App()  # not that of the module: it was made before the database of the tests

    def work(self, queue: str) -> None:
        """Run the worker of a queue until a message of it is acked."""
        began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def story() -> None:
            end = asyncio.Event()
            async with self.app.running():
                began.set_result((asyncio.get_running_loop(), end))
                await end.wait()

        with ThreadPoolExecutor(1) as threads:
            working = threads.submit(asyncio.run, story())
            loop, end = began.result(60)
            try:
                deadline = time.monotonic() + 60
                while self.app.queue(queue).counts().flow.acked < 1:
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.002)
            finally:
                loop.call_soon_threadsafe(end.set)
                working.result(60)

    def test_changes_puts_and_the_ack_are_committed_together(self) -> None:
        runs: list[int] = []

        @self.app.handler("payments", atomic=True, retry=bide.Backoff(attempts=2, first="1ms"))
        def pay(order: int) -> None:
            Order.objects.create(state="paid")
            orders.put({"order": order}, delay="1h", id=f"payment-{order}")
            runs.append(order)
            if len(runs) == 1:
                raise LookupError("the first attempt fails, after its changes")

        self.app.queue("payments").put(7)
        self.work("payments")
        self.assertEqual(runs, [7, 7])
        self.assertEqual(Order.objects.filter(state="paid").count(), 1)
        self.assertTrue(orders.cancel("payment-7"))

    def test_a_task_is_acked_with_its_changes(self) -> None:
        @self.app.task(queue="refunds", atomic=True)
        def refund(order: int, *, within: Any = None) -> None:
            with within.cursor() as cursor:
                cursor.execute("INSERT INTO kit_order (state) VALUES ('refunded')")

        refund.put(7)
        self.work("refunds")
        self.assertEqual(Order.objects.filter(state="refunded").count(), 1)

    def test_what_cannot_be_atomic_is_refused(self) -> None:
        with self.assertRaisesRegex(bide.InvalidArgument, "no transactions in async code"):

            @self.app.handler("q", atomic=True)
            async def handle(body: object) -> None: ...

        with self.assertRaisesRegex(bide.InvalidArgument, "cannot be combined"):
            self.app.task(atomic=True, within=lambda: None)
