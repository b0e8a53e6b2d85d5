"""The admin: the dashboard with Django's permissions, and messages beside their instances."""

import asyncio
import re
from tempfile import TemporaryDirectory
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import TransactionTestCase, override_settings
from django.urls import reverse

from bide.contrib.django import group_of
from bide.contrib.django.models import PERMISSIONS
from bide.contrib.django.testing import close_connections
from bide.dashboard import ACTIONS
from kit.handlers import orders
from kit.models import Order

BASE = "/admin/bide/store/"


class AdminCase(TransactionTestCase):
    def setUp(self) -> None:
        orders.cancel(after=0)
        self.order = Order.objects.create()
        orders.put({"order": 1, "card": "4111"}, id="a", delay="1h", group=group_of(self.order))

    @classmethod
    def tearDownClass(cls) -> None:
        close_connections()
        super().tearDownClass()

    def log_in(self, *permissions: str, staff: bool = True) -> User:
        user = User.objects.create_user("ann", password="x", is_staff=staff)
        found = Permission.objects.filter(content_type__app_label="bide")
        user.user_permissions.set(found.filter(codename__in=permissions))
        self.client.force_login(user)
        return user

    def text(self, path: str, status: int = 200) -> str:
        response = self.client.get(path)
        self.assertEqual(response.status_code, status, response.content[:500])
        return str(response.content.decode())

    def post(self, **headers: str) -> Any:
        """Cancel the message, as the form on its page does."""
        return self.client.post(
            f"{BASE}do",
            f"action=cancel&queue=orders&id=a&confirmed=1&back={BASE}",
            content_type="application/x-www-form-urlencoded",
            headers={"sec-fetch-site": "same-origin", **headers},
        )


class Dashboard(AdminCase):
    def test_every_action_has_a_permission(self) -> None:
        self.assertEqual({*ACTIONS, "bodies", "log"}, {*PERMISSIONS})

    def test_a_stranger_is_sent_to_the_login(self) -> None:
        response = self.client.get(BASE)
        self.assertRedirects(response, f"/admin/login/?next={BASE}")
        self.log_in("view_store", staff=False)
        self.assertEqual(self.client.get(BASE).status_code, 302)

    def test_who_has_no_permission_sees_nothing(self) -> None:
        self.log_in()
        self.assertNotIn("orders", self.text(BASE, 403))
        self.assertNotIn(BASE, self.text("/admin/"))

    def test_the_index_leads_to_it(self) -> None:
        self.log_in("view_store")
        self.assertIn(f'href="{BASE}"', self.text("/admin/"))
        page = self.text(BASE)
        self.assertIn("orders", page)
        for link in {*re.findall(r'(?:href|src)="(/[^"]*?)"', page)}:
            self.assertTrue(link.startswith("/admin/bide/store"), link)
            self.text(link.replace("&amp;", "&"))

    async def test_it_works_under_asgi(self) -> None:
        user = await sync_to_async(self.log_in)("view_store", "cancel")
        await self.async_client.aforce_login(user)
        pages = await asyncio.gather(*[self.async_client.get(BASE) for _ in range(5)])
        self.assertEqual({page.status_code for page in pages}, {200})
        self.assertIn(b"orders", pages[0].content)

    def test_bodies_need_a_permission_and_hidden_parts_stay_hidden(self) -> None:
        self.log_in("view_store")
        page = self.text(f"{BASE}message?queue=orders&id=a")
        self.assertNotIn("order&#34;: 1", page)
        self.client.logout()
        User.objects.all().delete()
        self.log_in("view_store", "bodies")
        page = self.text(f"{BASE}message?queue=orders&id=a")
        self.assertIn("order", page)
        self.assertNotIn("4111", page)

    def test_an_action_needs_its_permission(self) -> None:
        self.log_in("view_store", "purge")
        self.assertEqual(self.post().status_code, 403)
        self.assertIsNotNone(orders.get("a"))
        User.objects.all().delete()
        self.log_in("view_store", "cancel")
        with self.assertLogs("bide.dashboard", "INFO") as logs:
            self.assertEqual(self.post().status_code, 303)
        self.assertIn("cancel by ann", logs.output[0])
        self.assertIsNone(orders.get("a"))

    def test_the_action_log_needs_a_permission(self) -> None:
        with TemporaryDirectory() as folder:
            told = {**settings.BIDE, "ACTION_LOG": f"{folder}/actions.log"}
            with override_settings(BIDE=told):
                self.log_in("view_store", "cancel")
                self.assertEqual(self.post().status_code, 303)
                self.assertNotIn("actions.log", self.text(f"{BASE}log", 403))
                self.assertNotIn(f'href="{BASE}log"', self.text(BASE))
                User.objects.all().delete()
                self.log_in("view_store", "log")
                self.assertIn(f'href="{BASE}log"', self.text(BASE))
                cells = re.findall("<t[dh][^>]*>(.*?)</t[dh]>", self.text(f"{BASE}log"))
                self.assertEqual(cells[-7:-3], ["ann", "cancel", "orders", "a"], cells)
                self.assertEqual(cells[-1], "127.0.0.1")
        close_connections()  # of the dashboard of these settings

    def test_a_log_is_not_kept_unless_asked_for(self) -> None:
        self.log_in("view_store", "log")
        self.assertIn("BIDE = {&#34;ACTION_LOG&#34;", self.text(f"{BASE}log").replace('"', "&#34;"))

    def test_a_form_of_another_site_is_refused(self) -> None:
        self.log_in("view_store", "cancel")
        self.assertEqual(self.post(**{"sec-fetch-site": "cross-site"}).status_code, 403)
        self.assertIsNotNone(orders.get("a"))

    @override_settings(
        BIDE={
            "URL": "redis://127.0.0.1:1/0?reconnect=100ms",
            "TEST_URL": "redis://127.0.0.1:1/0?reconnect=100ms",
        }
    )
    def test_a_store_that_is_lost_is_told(self) -> None:
        self.log_in("view_store")
        self.text(BASE, 503)


class Pending(AdminCase):
    def test_messages_are_shown_beside_their_instance(self) -> None:
        self.client.force_login(User.objects.create_superuser("root"))
        page = self.text(reverse("admin:kit_order_change", args=[self.order.pk]))
        self.assertIn(f'<a href="{BASE}message?queue=orders&amp;id=a">a</a>', page)
        self.assertIn("<td>delayed</td>", page)
        other = Order.objects.create()
        page = self.text(reverse("admin:kit_order_change", args=[other.pk]))
        self.assertNotIn("<td>delayed</td>", page)
        self.text(reverse("admin:kit_order_add"))
