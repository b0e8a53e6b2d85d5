"""The permissions of the dashboard. There is no table: messages are in the store."""

from django.db import models

PERMISSIONS = {
    "bodies": "Can see bodies and headers of messages",
    "cancel": "Can cancel messages",
    "reschedule": "Can reschedule messages",
    "edit": "Can edit messages",
    "hold": "Can hold messages that repeat",
    "resume": "Can resume messages that repeat",
    "run_now": "Can let messages that repeat run now",
    "copy": "Can put copies of messages",
    "release": "Can end leases of workers",
    "stop": "Can stop and replace worker processes",
    "revive": "Can revive dead letters",
    "purge": "Can purge dead letters",
    "pause": "Can pause and resume queues",
    "delete": "Can delete empty queues",
    "subscriptions": "Can pause and resume subscriptions",
    "audit": "Can count all messages of a queue",
    "log": "Can see the action log",
}
"""What a user may see and do in the dashboard beside seeing queues, which needs `view_store`."""


class _Nothing(models.Manager):
    """Finds nothing, so that `dumpdata`, which reads all models, asks for no table."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().none()


class Store(models.Model):
    """The store, as an entry of the admin."""

    objects = _Nothing()

    class Meta:
        """Permissions, and how the admin calls it."""

        base_manager_name = "objects"
        managed = False
        default_permissions = ("view",)
        permissions = tuple(PERMISSIONS.items())
        verbose_name = verbose_name_plural = "queues"

    def __str__(self) -> str:
        return "queues"
