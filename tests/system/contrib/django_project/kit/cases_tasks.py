"""The backend of django.tasks."""

import gc
import unittest
from datetime import timedelta
from typing import Any

import django

if django.VERSION < (6, 0):
    raise unittest.SkipTest("django.tasks is in Django 6")

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.tasks import TaskResultStatus, default_task_backend, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils import timezone

import bide
from bide.contrib.django import Queue
from bide.contrib.django.task_records import WorkerLost
from bide.contrib.django.tasks import MOST_OPEN, BideTask, task
from bide.contrib.django.testing import BideTestMixin, DjangoWorker, close_connections
from bide.queue.base import open_queues
from bide.testing import ManualWorker
from kit import tasks
from kit.models import Order

backend: Any = default_task_backend

IMMEDIATE = "django.tasks.backends.immediate.ImmediateBackend"


class Cases(BideTestMixin, TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.worker = DjangoWorker(None, self.bide_store, errors="collect")
        tasks.calls.clear()

    def now(self) -> Any:
        return self.bide_store.clock.datetime()

    def test_sync_and_async_tasks_run_on_the_connection_of_the_test(self) -> None:
        for one in (tasks.expire, tasks.expire_later):
            order = Order.objects.create()
            result = one.enqueue(order.pk)
            self.assertEqual(result.status, TaskResultStatus.READY)
            self.worker.run_due()
            result.refresh()
            self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
            self.assertEqual(result.return_value, f"{order.pk} expired")
            self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
            order.refresh_from_db()
            self.assertEqual(order.state, "expired")

    async def test_all_of_it_has_an_async_form(self) -> None:
        result = await tasks.note.aenqueue("a")
        self.assertTrue(await backend.areschedule(result, delay="1h"))
        self.assertEqual(await tasks.note.aget_result(result.id), result)
        self.assertTrue(await backend.acancel(result))
        with self.assertRaises(TaskResultDoesNotExist):
            await result.arefresh()

    def test_a_task_waits_until_run_after(self) -> None:
        result = tasks.note.using(run_after=self.now() + timedelta(hours=1)).enqueue("a")
        self.worker.advance("59m")
        self.assertEqual(tasks.calls, [])
        self.assertEqual(backend.get_result(result.id), result)
        self.worker.advance("1m")
        self.assertEqual(tasks.calls, ["a"])

    def test_it_can_be_cancelled_and_rescheduled(self) -> None:
        at = self.now() + timedelta(hours=1)
        first, second = (tasks.note.using(run_after=at).enqueue(what) for what in "ab")
        self.assertTrue(backend.cancel(first))
        self.assertFalse(backend.cancel(first))
        self.assertTrue(backend.reschedule(second, at + timedelta(hours=1)))
        self.assertTrue(backend.reschedule(second.id, delay="2h"))
        with self.assertRaises(TaskResultDoesNotExist):
            first.refresh()
        self.worker.advance("119m")
        self.assertEqual(tasks.calls, [])
        self.worker.advance("1m")
        self.assertEqual(tasks.calls, ["b"])
        self.assertFalse(backend.cancel(second))
        self.assertFalse(backend.reschedule("default:nothing", at))

    def test_higher_priority_goes_first(self) -> None:
        for priority in (-100, 0, 100, 7):
            tasks.note.using(priority=priority).enqueue(str(priority))
        self.worker.advance("1s")
        self.assertEqual(tasks.calls, ["100", "7", "0", "-100"])

    def test_an_error_is_a_failure_at_once(self) -> None:
        result = tasks.stubborn.using(backend="default").enqueue(1)
        failing = tasks.unserializable.enqueue()
        with self.assertLogs("django.tasks", "INFO") as logs:
            self.worker.run_due()
        failing.refresh()
        self.assertEqual(failing.status, TaskResultStatus.FAILED)
        (error,) = failing.errors
        self.assertIs(error.exception_class, TypeError)
        (dead,) = self.bide_store.dead("tasks.default")
        self.assertRegex(dead.error or "", r"^builtins\.TypeError: Unsupported type")
        self.assertIn("Traceback", error.traceback)
        self.assertIsNotNone(failing.finished_at)
        self.assertIn("state=FAILED", "".join(logs.output))
        result.refresh()
        self.assertEqual(result.return_value, 1)

    def test_a_result_that_is_too_large_is_a_failure(self) -> None:
        result = tasks.too_much.enqueue()
        self.worker.advance("1h")
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertIn("InvalidArgument", result.errors[0].exception_class_path)
        self.assertEqual(tasks.calls, ["too much"])

    def test_a_task_with_retry_is_tried_again(self) -> None:
        result, hopeless = tasks.stubborn.enqueue(3), tasks.stubborn.enqueue(9)
        self.worker.advance("5s")
        result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.READY, 1))
        self.worker.advance("1h")
        result.refresh()
        self.assertEqual(result.return_value, 3)
        self.assertEqual(result.attempts, 3)
        self.assertEqual([one.exception_class for one in result.errors], [ValueError] * 2)
        hopeless.refresh()
        self.assertEqual((hopeless.status, hopeless.attempts), (TaskResultStatus.FAILED, 3))
        self.assertEqual(len(hopeless.errors), 3)

    @override_settings(TASKS={"default": {"BACKEND": IMMEDIATE}})
    def test_another_backend_tries_nothing_again(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "retry= needs BideBackend in TASKS['default']"):
            task(retry=bide.Backoff(attempts=2))(tasks.note.func)
        self.assertNotIsInstance(task(tasks.note.func), BideTask)

    def test_a_lost_worker_is_an_error_of_its_attempt(self) -> None:
        result = tasks.note.enqueue("a")
        self.bide_store.clock.advance(2)
        (delivery,) = Queue("tasks.default").claim(lease=60)
        result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.RUNNING, 1))
        self.assertIsNotNone(result.started_at)
        self.assertFalse(backend.cancel(result))
        self.worker.advance("2m")
        self.assertEqual(tasks.calls, ["a"])
        result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.SUCCESSFUL, 2))
        self.assertIs(result.errors[0].exception_class, WorkerLost)
        self.assertIsNotNone(delivery)

    def test_a_result_comes_with_the_ack(self) -> None:
        """So a worker that has lost its lease leaves none, and the next attempt's counts."""
        result = tasks.note.enqueue("a")
        self.bide_store.clock.advance(2)
        (delivery,) = Queue("tasks.default").claim(lease=1)
        self.worker.advance("1m")
        with self.assertRaises(bide.LeaseLost):
            delivery.ack(result="late")
        result.refresh()
        self.assertIsNone(result.return_value)
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.SUCCESSFUL, 2))
        assert result.enqueued_at and result.started_at and result.finished_at
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLess(result.started_at, result.last_attempted_at)
        self.assertLessEqual(result.last_attempted_at, result.finished_at)

    def test_no_results_are_kept_where_none_are_wanted(self) -> None:
        told = {"default": {"BACKEND": BACKEND, "OPTIONS": {"RESULT_TTL": 0}}}
        with override_settings(TASKS=told):
            app = bide.App()
            task_backends["default"].register(app)
            results = [tasks.note.enqueue("a"), tasks.too_much.enqueue()]
            DjangoWorker(app, self.bide_store).run_due()
            for result in results:
                with self.assertRaises(TaskResultDoesNotExist):
                    result.refresh()
        self.assertEqual(tasks.calls, ["a", "too much"])
        self.assertEqual(self.bide_store.dead("tasks.default"), [])

    def test_the_retry_of_a_task_judges_its_timeout(self) -> None:
        seen: list[str] = []

        def receive(sender: Any, task_result: Any, **more: Any) -> None:
            seen.append(task_result.status)

        async def keep(delivery: bide.Handling, go_on: Any) -> None:
            tasks.deliveries.append(delivery)
            await go_on()

        task_finished.connect(receive)
        self.addCleanup(task_finished.disconnect, receive)
        limited = {"default": {"BACKEND": BACKEND, "OPTIONS": {"TIMEOUT": "30s", "LEASE": "1d"}}}
        for one, attempts in ((tasks.overrun, 1), (tasks.overrun_twice, 2)):
            with self.subTest(one.name), override_settings(TASKS=limited):
                tasks.calls.clear()
                app = bide.App()
                app.middleware(keep)
                task_backends["default"].register(app)
                result = one.enqueue()
                # Whose handlers run in threads of their own, so that it sees their time pass.
                with ManualWorker(app, self.bide_store, errors="collect") as worker:
                    worker.advance("1d")
                result.refresh()
                self.assertEqual(result.status, TaskResultStatus.FAILED)
                self.assertEqual(tasks.calls, ["overrun"] * attempts)
                self.assertIs(result.errors[-1].exception_class, TimeoutError)
        self.assertEqual(seen, [])  # nor that they were successful, when they ended late

    def test_ids_of_strangers_open_few_queues(self) -> None:
        before = len(open_queues)
        for number in range(3 * MOST_OPEN):
            with self.assertRaises(TaskResultDoesNotExist):
                backend.get_result(f"queue-{number}:nothing")
        gc.collect()
        self.assertLessEqual(len(open_queues) - before, MOST_OPEN)

    def test_results_go_after_their_time(self) -> None:
        result = tasks.note.enqueue("a")
        self.worker.run_due()
        self.worker.advance("23h")
        result.refresh()
        self.worker.advance("2h")
        with self.assertRaises(TaskResultDoesNotExist):
            result.refresh()
        self.assertEqual(self.bide_store.messages("tasks.default"), [])

    def test_signals_are_sent(self) -> None:
        seen: list[tuple[str, str]] = []

        def see(name: str) -> Any:
            def receive(sender: Any, task_result: Any, **more: Any) -> None:
                seen.append((name, task_result.status))

            return receive

        receivers = [
            (signal, see(name))
            for signal, name in (
                (task_enqueued, "enqueued"),
                (task_started, "started"),
                (task_finished, "finished"),
            )
        ]
        for signal, receiver in receivers:
            signal.connect(receiver)
            self.addCleanup(signal.disconnect, receiver)
        tasks.note.enqueue("a")
        self.worker.run_due()
        assert seen == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


class Settings(SimpleTestCase):
    def test_a_wrong_option_is_named(self) -> None:
        for options in ({"RESULT_TL": "1d"}, {"RESULT_TTL": "soon"}, {"ATTEMPTS": "many"}):
            wrong = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
            with override_settings(TASKS=wrong), self.assertRaises(ImproperlyConfigured) as caught:
                _ = task_backends["default"]
            self.assertIn("RESULT_TTL", str(caught.exception))

    def test_a_name_that_no_queue_can_have_is_refused(self) -> None:
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": []}}):
            with self.assertRaisesRegex(InvalidTask, "queue_name"):
                tasks.note.using(queue_name="not / valid")
            (warning,) = task_backends["default"].check()
        self.assertEqual(warning.id, "bide.W004")


class InTheDatabase(TransactionTestCase):
    @classmethod
    def tearDownClass(cls) -> None:
        close_connections()
        super().tearDownClass()

    def test_a_task_is_enqueued_with_the_transaction(self) -> None:
        with self.assertRaises(KeyError), transaction.atomic():
            gone = tasks.note.enqueue("a")
            raise KeyError
        with self.assertRaises(TaskResultDoesNotExist):
            gone.refresh()
        with transaction.atomic():
            kept = tasks.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("b")
        self.assertEqual(backend.get_result(kept.id), kept)
        with self.assertRaises(KeyError), transaction.atomic():
            backend.cancel(kept)
            raise KeyError
        kept.refresh()
        self.assertTrue(backend.cancel(kept))


BACKEND = "bide.contrib.django.tasks.BideBackend"
