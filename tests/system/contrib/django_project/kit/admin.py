from django.contrib import admin

from bide.contrib.django.admin import PendingMessages
from kit.models import Order


@admin.register(Order)
class OrderAdmin(PendingMessages, admin.ModelAdmin):
    bide_queues = ("orders", "later")
