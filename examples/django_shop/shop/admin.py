"""The admin: an order's page shows its deadline."""

from django.contrib import admin
from shop.models import Article, Order

from bide.contrib.django.admin import PendingMessages

__all__ = ["OrderAdmin"]

admin.site.register(Article)


@admin.register(Order)
class OrderAdmin(PendingMessages, admin.ModelAdmin):
    """Orders, with the messages that concern them."""

    list_display = ("id", "article", "state", "placed")
    bide_queues = ("deadlines",)
