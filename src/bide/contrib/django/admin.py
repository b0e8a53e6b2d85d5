"""The admin: the dashboard, and the pending messages of a model's instances."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, path, re_path, reverse
from django.utils.html import format_html, format_html_join
from django.views.decorators.csrf import csrf_exempt

from bide.contrib.django.models import Store
from bide.contrib.django.queues import Queue, group_of
from bide.model.errors import StoreError
from bide.model.message import Message

TITLES = ("id", "queue", "state", "due", "attempts", "last error")

SHOWN = 50
"""The maximum number of messages of a queue that `PendingMessages` shows."""


@admin.register(Store)
class StoreAdmin(admin.ModelAdmin):
    """The dashboard of the store, at `/admin/bide/store/`."""

    def get_urls(self) -> list[Any]:
        """Return the dashboard's pages alone."""
        # It checks where a form comes from by itself, and its forms have no token of Django.
        view = self.admin_site.admin_view(csrf_exempt(self.dashboard))
        return [
            path("", view, name="bide_store_changelist"),
            re_path("^(?P<page>.+)$", view, name="bide_store_page"),
        ]

    def dashboard(self, request: HttpRequest, page: str = "") -> HttpResponse:
        """Answer a request; what the user may see and do, Django's permissions say."""
        # Django imports this module in every process, also in those that show no page.
        from bide.contrib.django.dashboard import answer

        return answer(request, reverse(f"{self.admin_site.name}:bide_store_changelist").rstrip("/"))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nothing can be added."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The dashboard has permissions of its own."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing can be deleted."""
        return False


class PendingMessages:
    """For a `ModelAdmin`: shows the pending messages that concern an instance.

    These are the ones with `group=group_of(instance)`, in the queues that `bide_queues` names.

    Example:
        ::

            @admin.register(Order)
            class OrderAdmin(PendingMessages, admin.ModelAdmin):
                bide_queues = ["orders", "reminders"]
    """

    bide_queues: Sequence[str] = ()
    """The names of the queues in which it looks."""

    def bide_group(self, instance: Any) -> str:
        """Return the group of the messages that concern an instance."""
        return group_of(instance)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Sequence[str]:
        """Add the field."""
        fields: Sequence[str] = super().get_readonly_fields(request, obj)  # type: ignore[misc]
        return [*fields, "pending_messages"]

    @admin.display(description="pending messages")
    def pending_messages(self, instance: Any) -> str:
        """Return the messages as a table; what fails is said in their place."""
        if instance.pk is None:  # it is about to be added
            return "-"
        try:
            messages = [
                message
                for name in self.bide_queues
                for message in self._messages_in(name, instance)
            ]
        except StoreError as error:
            return f"the store does not answer: {error}"
        if not messages:
            return "none"
        return _table(messages)

    def _messages_in(self, name: str, instance: Any) -> Iterable[Message]:
        """Return the messages of a queue that concern an instance, by due time."""
        messages = _queue(name).scan(group=self.bide_group(instance), page=SHOWN)
        return sorted(islice(messages, SHOWN), key=lambda message: message.due)


_queue = cache(Queue)
"""Returns the queue of a name; each is opened once."""


def _table(messages: Iterable[Message]) -> str:
    """Return messages as a table in HTML."""
    rows = (
        (
            _url_of(message),
            message.id,
            message.queue,
            message.state,
            f"{message.due_at:%Y-%m-%d %H:%M:%S} UTC",
            f"{message.attempt}/{message.attempts}",
            (message.error or "").partition("\n")[0],  # the first line; a traceback may follow
        )
        for message in messages
    )
    # The id with its link, and the five other fields.
    row_format = '<tr><td><a href="{}">{}</a></td>' + "<td>{}</td>" * 5 + "</tr>"
    head = format_html_join("", "<th>{}</th>", ((title,) for title in TITLES))
    table: str = format_html(
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>",
        head,
        format_html_join("", row_format, rows),
    )
    return table


def _url_of(message: Message) -> str:
    """Return the URL of a message in the dashboard of the default admin site, "" without one."""
    try:
        page = reverse("admin:bide_store_page", args=["message"])
    except NoReverseMatch:
        return ""
    return f"{page}?{urlencode({'queue': message.queue, 'id': message.id})}"
