"""Queues and transactions, on a real database that is the store, or is not."""

from collections.abc import Callable
from typing import Any

from django.core.management import call_command
from django.db import connection, transaction
from django.test import TransactionTestCase, modify_settings, override_settings
from project.settings import FOLDER

import bide
from bide.contrib.django import AsyncQueue, Queue, group_of
from bide.contrib.django.testing import close_connections
from kit.handlers import expire_order, orders
from kit.models import Order

ELSEWHERE = f"sqlite:///{FOLDER / 'elsewhere.db'}"
OUTBOX = "bide.contrib.django.outbox"


class Fails(Exception):
    pass


class QueueCase(TransactionTestCase):
    @classmethod
    def tearDownClass(cls) -> None:
        close_connections()
        super().tearDownClass()

    def setUp(self) -> None:
        for queue in (orders, Queue("orders", ELSEWHERE)):
            queue.cancel(after=0)

    def ids(self, queue: bide.Queue = orders) -> list[str]:
        return sorted(message.id for message in queue.scan())


def _check_what_cannot_join(case: QueueCase) -> None:
    for id in ("a", "b"):
        orders.put({}, id=id, delay="1h", group="g")
    changes: list[Callable[[], int]] = [
        lambda: orders.cancel(group="g", undo=True),
        lambda: orders.reschedule(group="g", delay=0, undo=True),
        lambda: orders.purge(state="delayed", undo=True),
        lambda: orders.revive(undo=True),
    ]
    with transaction.atomic():
        for change in changes:
            with case.assertRaisesRegex(bide.InvalidArgument, "outside of transaction.atomic"):
                change()
    cancelled = orders.cancel(group="g", undo=True)
    case.assertEqual((cancelled, case.ids()), (2, []))
    with transaction.atomic():
        with case.assertRaisesRegex(bide.InvalidArgument, "outside of transaction.atomic"):
            orders.undo(cancelled.undo)
        with case.assertRaisesRegex(bide.InvalidArgument, "outside of transaction.atomic"):
            orders.load([])
    case.assertEqual(orders.undo(cancelled.undo).restored, 2)
    case.assertEqual(case.ids(), ["a", "b"])


class InTheDatabase(QueueCase):
    """The store lives in the database of the tests."""

    def test_a_put_is_committed_with_the_order(self) -> None:
        with transaction.atomic():
            order = Order.objects.create()
            outcome = orders.put({"order": order.pk}, delay="30m", id="a")
        self.assertEqual((outcome.done, outcome.state), (True, "delayed"))
        self.assertEqual(self.ids(), ["a"])

    def test_a_task_is_put_with_the_order(self) -> None:
        for within in (None, connection):
            with self.subTest(within=within):
                with self.assertRaises(Fails), transaction.atomic():
                    order = Order.objects.create()
                    expire_order.later("30m", id="a", within=within).put(order.pk)
                    raise Fails
                self.assertIsNone(expire_order.get("a"))
                with transaction.atomic():
                    order = Order.objects.create()
                    expire_order.later("30m", id="a", within=within).put(order.pk)
                self.assertIsNotNone(expire_order.get("a"))
                with self.assertRaises(Fails), transaction.atomic():
                    self.assertTrue(expire_order.cancel("a"))
                    raise Fails
                self.assertTrue(expire_order.cancel("a"))

    def test_a_rollback_takes_the_put_along(self) -> None:
        with self.assertRaises(Fails), transaction.atomic():
            orders.put({}, id="a")
            raise Fails
        self.assertEqual(self.ids(), [])

    def test_a_savepoint_takes_its_puts_along(self) -> None:
        with transaction.atomic():
            orders.put({}, id="kept")
            with self.assertRaises(Fails), transaction.atomic():
                orders.put({}, id="gone")
                orders.cancel("kept")
                raise Fails
            orders.put_many([bide.NewMessage({}, id="more")])
        self.assertEqual(self.ids(), ["kept", "more"])

    def test_a_cancel_and_a_reschedule_are_rolled_back(self) -> None:
        due = orders.put({}, id="a", delay="1h").due
        orders.put({}, id="b", group="g")
        with self.assertRaises(Fails), transaction.atomic():
            self.assertTrue(orders.reschedule("a", delay="2h"))
            self.assertEqual(orders.cancel(group="g"), 1)
            self.assertTrue(orders.cancel("a"))
            raise Fails
        self.assertEqual(self.ids(), ["a", "b"])
        message = orders.get("a")
        assert message is not None
        self.assertEqual(message.due, due)

    def test_within_false_is_done_at_once_and_stays(self) -> None:
        if connection.vendor == "sqlite":
            return  # one transaction writes at a time: it would wait for this one
        with self.assertRaises(Fails), transaction.atomic():
            orders.put({}, id="a", within=False)
            self.assertEqual(self.ids(), ["a"])
            raise Fails
        self.assertEqual(self.ids(), ["a"])

    def test_a_transaction_without_atomic_is_joined_too(self) -> None:
        transaction.set_autocommit(False)
        try:
            orders.put({}, id="gone")
            transaction.rollback()
            orders.put({}, id="kept")
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        self.assertEqual(self.ids(), ["kept"])

    def test_outside_of_a_transaction_it_is_done_at_once(self) -> None:
        self.assertEqual(orders.put({}, delay="1m", id="a").state, "delayed")
        self.assertEqual(self.ids(), ["a"])

    def test_if_version_cannot_join(self) -> None:
        with self.assertRaisesRegex(bide.InvalidArgument, "if_version"), transaction.atomic():
            orders.cancel("a", if_version="0" * 16)

    def test_keep_is_told_with_the_first_put(self) -> None:
        queue = Queue("remembering", keep="1h", history="1h", result_ttl="1h")
        with transaction.atomic():
            queue.put({}, id="a")
        (delivery,) = queue.claim()
        delivery.ack()
        self.assertFalse(queue.put({}, id="a"))

    def test_undo_and_load_are_no_part_of_a_transaction(self) -> None:
        _check_what_cannot_join(self)

    async def test_the_async_queue_has_the_same_store(self) -> None:
        async with AsyncQueue("orders") as queue:
            await queue.put({}, id="a", delay="1h")
            self.assertIsNotNone(await queue.get("a"))

    def test_a_group_names_the_instance(self) -> None:
        order = Order.objects.create()
        self.assertEqual(group_of(order), f"kit.order:{order.pk}")
        with self.assertRaisesRegex(ValueError, "save it first"):
            group_of(Order())


@override_settings(BIDE={"URL": ELSEWHERE, "TEST_URL": ELSEWHERE})
class ElsewhereWithoutOutbox(QueueCase):
    """The store is another one, and there is no outbox."""

    def test_a_put_waits_for_the_commit(self) -> None:
        with transaction.atomic():
            outcome = orders.put({"order": 1}, delay="30m", id="a")
            self.assertEqual(outcome.state, "pending")
            with self.assertRaises(bide.OutcomePending):
                bool(outcome)
            self.assertEqual(self.ids(), [])
        message = orders.get("a")
        assert message is not None
        self.assertEqual(message.due, outcome.due)

    def test_a_rollback_takes_the_put_along(self) -> None:
        with self.assertRaises(Fails), transaction.atomic():
            orders.put({}, id="a")
            raise Fails
        with transaction.atomic():
            orders.put({}, id="kept")
            with self.assertRaises(Fails), transaction.atomic():
                orders.put({}, id="gone")
                raise Fails
        self.assertEqual(self.ids(), ["kept"])

    def test_cancel_and_reschedule_wait_too(self) -> None:
        orders.put({}, id="a", delay="1h")
        orders.put({}, id="b", delay="1h")
        with transaction.atomic():
            self.assertEqual(orders.cancel("a").state, "pending")
            self.assertEqual(orders.reschedule("b", delay="2h").state, "pending")
            self.assertEqual(self.ids(), ["a", "b"])
        self.assertEqual(self.ids(), ["b"])

    def test_undo_and_load_are_no_part_of_a_transaction(self) -> None:
        _check_what_cannot_join(self)

    def test_what_was_refused_is_logged(self) -> None:
        with self.assertLogs("bide.django", "WARNING") as logs, transaction.atomic():
            orders.cancel("nothing")
        self.assertIn("nothing was not cancelled: it is not in the queue", logs.output[0])

    def test_a_worker_is_asked_to_stop_after_the_commit(self) -> None:
        orders.put({}, id="a")
        (delivery,) = orders.claim()
        with self.assertNoLogs("bide.django", "WARNING"), transaction.atomic():
            self.assertEqual(orders.cancel("a", running=True).state, "pending")
            self.assertIsNone(orders.explain("a").facts.stopping)
        self.assertIsNotNone(orders.explain("a").facts.stopping)
        delivery.release()
        self.assertEqual(self.ids(), [])

    def test_a_failure_of_the_store_is_raised(self) -> None:
        with override_settings(
            BIDE={"URL": "sqlite:////proc/no/such.db", "TEST_URL": "sqlite:////proc/no/such.db"}
        ):
            with self.assertRaises(bide.StoreError), transaction.atomic():
                Order.objects.create(state="committed")
                orders.put({}, id="a")
        self.assertTrue(Order.objects.filter(state="committed").exists())

    def test_a_group_is_cancelled_at_once_or_not_at_all(self) -> None:
        orders.put({}, id="a", group="g")
        with transaction.atomic():
            with self.assertRaisesRegex(bide.InvalidArgument, "outside of the transaction"):
                orders.cancel(group="g")
            self.assertEqual(orders.cancel(group="g", dry_run=True), 1)
            self.assertEqual(orders.cancel(group="g", within=False), 1)
        self.assertEqual(self.ids(), [])


@override_settings(BIDE={"URL": ELSEWHERE, "TEST_URL": ELSEWHERE})
@modify_settings(INSTALLED_APPS={"append": OUTBOX})
class ElsewhereWithOutbox(QueueCase):
    """The store is another one, and puts go to the outbox."""

    available_apps: Any = None

    def setUp(self) -> None:
        call_command("migrate", "bide_outbox", verbosity=0)
        super().setUp()

    def rows(self) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT queue, id FROM bide_outbox ORDER BY number")
            return [tuple(row) for row in cursor.fetchall()]

    def test_puts_are_rows_and_reach_the_store(self) -> None:
        with self.assertRaises(Fails), transaction.atomic():
            orders.put({}, id="gone")
            raise Fails
        with transaction.atomic():
            self.assertEqual(orders.put({}, id="a", delay="1h").state, "pending")
            self.assertEqual(orders.cancel("a").state, "pending")
            self.assertEqual(orders.put({}, id="b", delay="1h").state, "pending")
        self.assertEqual(self.rows(), [("orders", "a"), ("orders", "a"), ("orders", "b")])
        self.assertEqual(self.ids(), [])
        call_command("bide", "forward", "--once")
        self.assertEqual(self.rows(), [])
        self.assertEqual(self.ids(), ["b"])

    def test_calls_of_tasks_are_rows_too(self) -> None:
        with transaction.atomic():
            self.assertEqual(expire_order.later("1h", id="a").put(1).state, "pending")
            later = expire_order.later("1h", id="b", within=connection)
            self.assertEqual(later.put(2).state, "pending")
            self.assertTrue(expire_order.later("1h", id="c", within=False).put(3))
        self.assertEqual(self.rows(), [("expire_order", "a"), ("expire_order", "b")])
        call_command("bide", "forward", "--once")
        self.assertEqual(self.ids(expire_order.queue), ["a", "b", "c"])

    def test_undo_and_load_are_no_part_of_a_transaction(self) -> None:
        _check_what_cannot_join(self)
        self.assertEqual(self.rows(), [])

    def test_the_migration_is_not_taken_back_while_commands_wait(self) -> None:
        with transaction.atomic():
            orders.put({}, id="a", delay="1h")
        with self.assertRaisesRegex(bide.NotEmpty, "1 commands in bide_outbox wait.*give them up"):
            call_command("migrate", "bide_outbox", "zero", verbosity=0)
        call_command("bide", "forward", "--once")
        self.assertEqual((self.rows(), self.ids()), ([], ["a"]))

    def test_the_migration_can_be_taken_back(self) -> None:
        call_command("migrate", "bide_outbox", "zero", verbosity=0)
        self.assertNotIn("bide_outbox", connection.introspection.table_names())
        call_command("migrate", "bide_outbox", verbosity=0)
        self.assertEqual(self.rows(), [])
