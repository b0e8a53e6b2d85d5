"""The tests of the shop: `manage.py test`. No worker and no store is needed."""

from django.contrib.auth.models import User
from django.test import TestCase
from shop.handlers import Deadline
from shop.models import Article, Order

from bide.contrib.django.testing import BideTestMixin


class ShopTests(BideTestMixin, TestCase):
    """Orders, paid and unpaid."""

    def setUp(self) -> None:
        super().setUp()
        self.teapot = Article.objects.create(name="teapot", stock=1)

    def order(self, status: int = 201) -> int:
        response = self.client.post("/orders", {"article": "teapot"})
        self.assertEqual(response.status_code, status)
        return int(response.json().get("order", 0))

    def state(self, number: int) -> str:
        return str(self.client.get(f"/orders/{number}").json()["state"])

    def test_an_unpaid_order_is_cancelled(self) -> None:
        number = self.order()
        self.bide_store.assert_put("deadlines", Deadline(number), id=f"order-{number}")
        self.order(status=409)  # sold out
        self.bide_worker.advance("29m")
        self.assertEqual(self.state(number), "unpaid")
        self.bide_worker.advance("1m")
        self.assertEqual(self.state(number), "cancelled")
        self.assertEqual(self.client.post(f"/orders/{number}/paid").status_code, 409)
        self.order()  # back on the shelf

    def test_a_paid_order_is_left_alone(self) -> None:
        number = self.order()
        self.assertEqual(self.client.post(f"/orders/{number}/paid").status_code, 200)
        self.assertEqual(self.bide_store.pending("deadlines"), [])
        self.bide_worker.advance("1h")
        self.assertEqual(self.state(number), "paid")

    def test_a_lost_store_is_filled_again(self) -> None:
        order = Order.objects.create(article=self.teapot)
        self.bide_worker.run_due()
        found = [message.id for message in self.bide_store.pending("deadlines")]
        self.assertEqual(found, [f"order-{order.pk}"])

    def test_the_admin_shows_the_deadline(self) -> None:
        number = self.order()
        self.client.force_login(User.objects.create_superuser("root"))
        page = self.client.get(f"/admin/shop/order/{number}/change/")
        self.assertContains(page, f"order-{number}</a></td><td>deadlines</td><td>delayed</td>")
