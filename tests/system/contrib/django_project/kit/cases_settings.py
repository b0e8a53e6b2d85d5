"""The setting `BIDE`: which store it names, and what the system checks say."""

import inspect
import io
import json
import os
from typing import Any
from unittest import mock

from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import SimpleTestCase, TestCase, modify_settings, override_settings

import bide
from bide.contrib.django import AsyncQueue, Queue
from bide.contrib.django.apps import check_settings, check_tasks
from bide.contrib.django.conf import configuration, in_database, store_url, url_of
from bide.engines.registry import opener
from kit.handlers import orders
from kit.models import Order

ELSEWHERE = "redis://user:secret@127.0.0.1:1/0"
OUTBOX = "bide.contrib.django.outbox"


class StoreCase(TestCase):
    def test_it_is_the_database_of_the_tests(self) -> None:
        self.assertEqual(store_url(), url_of("default"))
        self.assertIn("test", store_url())
        self.assertTrue(in_database(store_url(), "default"))
        opener(store_url())  # raises if it is no URL of a store

    def test_no_test_touches_a_store_in_use(self) -> None:
        with override_settings(BIDE={"URL": ELSEWHERE}):
            self.assertEqual(store_url(), "memory://")
            self.assertTrue(orders.put({}, id="a"))
            self.assertEqual(orders.url, "memory://")
            orders.cancel("a")
        with mock.patch.dict(os.environ, BIDE_URL=ELSEWHERE):
            self.assertEqual(store_url(), "memory://")
        with override_settings(BIDE={"URL": ELSEWHERE, "TEST_URL": "sqlite:////tmp/x.db"}):
            self.assertEqual(store_url(), "sqlite:////tmp/x.db")

    def test_a_store_for_tests_takes_the_place_of_the_database_too(self) -> None:
        with override_settings(BIDE={"TEST_URL": "memory://"}):
            self.assertEqual(store_url(), "memory://")

    def test_special_characters_survive(self) -> None:
        if connection.vendor != "postgresql":
            return
        settings = {"USER": "a@b", "PASSWORD": "p/w:%#?", "HOST": "db", "PORT": "5433"}
        with mock.patch.dict(connection.settings_dict, {**settings, "NAME": "shop 1"}):
            url = url_of("default")
            self.assertTrue(in_database(f"{url}&schema=other", "default"))
            self.assertFalse(in_database(url.replace("5433", "5432"), "default"))
        self.assertTrue(url.startswith("postgresql://a%40b:p%2Fw%3A%25%23%3F@/shop%201?"), url)


class Checks(TestCase):
    def ids(self, **bide: Any) -> list[str]:
        with override_settings(BIDE=bide):
            return [str(message.id) for message in check_settings()]

    def test_nothing_is_wrong(self) -> None:
        self.assertEqual(self.ids(), [])

    def test_what_is_wrong_is_named(self) -> None:
        self.assertEqual(self.ids(URI="redis://"), ["bide.E001"])
        self.assertEqual(self.ids(URL=7), ["bide.E001"])
        self.assertEqual(self.ids(URL=ELSEWHERE, TEST_URL="mysql://db"), ["bide.E001"])
        self.assertEqual(self.ids(URL="mysql://db", TEST_URL="memory://"), ["bide.E001"])
        self.assertEqual(self.ids(DATABASE="other"), ["bide.E002"])
        self.assertEqual(self.ids(APP="shop.queues"), ["bide.E004"])

    def test_tasks_need_django_6(self) -> None:
        backend = {"BACKEND": "bide.contrib.django.tasks.BideBackend"}
        others = {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"}
        with override_settings(TASKS={"default": others, "mails": backend}):
            for version, ids in (((5, 2, 0), ["bide.E006"]), ((6, 0, 0), [])):
                with mock.patch("django.VERSION", version):
                    messages = check_tasks()
                self.assertEqual([str(message.id) for message in messages], ids)
                self.assertTrue(all("TASKS['mails']" in str(message) for message in messages))

    def test_what_may_surprise_is_named(self) -> None:
        self.assertEqual(self.ids(URL="memory://"), ["bide.W001"])
        self.assertEqual(self.ids(URL=ELSEWHERE), ["bide.W002"])
        with modify_settings(INSTALLED_APPS={"append": OUTBOX}):
            self.assertEqual(self.ids(URL=ELSEWHERE), [])
            with mock.patch.object(connections["default"], "vendor", "mysql"):
                self.assertEqual(self.ids(URL=ELSEWHERE), ["bide.E003"])
        if connection.vendor == "sqlite":
            with mock.patch.dict(connection.settings_dict, OPTIONS={}):
                self.assertEqual(self.ids(), ["bide.W003"])

    def test_no_password_is_shown(self) -> None:
        with override_settings(BIDE={"URL": ELSEWHERE}):
            (message,) = check_settings()
        self.assertNotIn("secret", str(message))

    def test_the_error_names_what_is_known(self) -> None:
        with override_settings(BIDE={"URI": "redis://"}):
            with self.assertRaisesRegex(ImproperlyConfigured, "URI.*URL.*DATABASE"):
                configuration()
            with self.assertRaisesRegex(CommandError, "URI"):
                call_command("bide", "queues")


class Commands(SimpleTestCase):
    def test_the_exit_code_is_kept(self) -> None:
        for arguments, code in ((["nonsense"], 2), (["get", "orders", "x"], 3)):
            with mock.patch("sys.stderr", io.StringIO()), self.assertRaises(SystemExit) as caught:
                call_command("bide", *arguments, "--url", "sqlite:////no/such.db")
            self.assertEqual(caught.exception.code, code)

    def test_the_help_names_the_command_of_django(self) -> None:
        for arguments in ([], ["worker", "--help"], ["--settings", "x", "worker", "--help"]):
            with mock.patch("sys.stdout", io.StringIO()) as out:
                call_command("bide", *arguments)
            self.assertIn("manage.py bide", out.getvalue())
            self.assertNotIn("the file bide.db", out.getvalue())

    def test_the_environment_is_put_back(self) -> None:
        before = dict(os.environ)
        with mock.patch("sys.stdout", io.StringIO()):
            call_command("bide", "--", "worker", "--help")
        self.assertEqual(dict(os.environ), before)


class Data(TestCase):
    def test_dumpdata_finds_no_messages_and_no_table(self) -> None:
        order = Order.objects.create()
        for options in ({}, {"use_base_manager": True}):
            out = io.StringIO()
            call_command("dumpdata", "bide", "kit", stdout=out, **options)
            self.assertEqual([one["pk"] for one in json.loads(out.getvalue())], [order.pk])


class Mixed(TestCase):
    def test_queues_take_what_those_of_bide_take(self) -> None:
        for ours, theirs in ((Queue, bide.Queue), (AsyncQueue, bide.AsyncQueue)):
            self.assertEqual(inspect.signature(ours), inspect.signature(theirs))

    def test_a_queue_of_a_named_store_stays_there(self) -> None:
        with Queue("orders", "memory://") as queue:
            self.assertTrue(queue.put({}, id="a"))
            self.assertEqual(queue.url, "memory://")
            self.assertIsInstance(queue, bide.Queue)
