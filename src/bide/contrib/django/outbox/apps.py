"""The application whose migration makes the tables."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The tables `bide_outbox` and `bide_outbox_dead`."""

    name = "bide.contrib.django.outbox"
    label = "bide_outbox"
    verbose_name = "bide's outbox"
