"""What Django learns of the kit when it starts."""

from django.apps import AppConfig
from django.core import checks

__all__ = ["BideConfig"]


class BideConfig(AppConfig):
    """The application `bide`."""

    name = "bide.contrib.django"
    label = "bide"
    verbose_name = "bide"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from bide.contrib.django.checks import check_settings

        checks.register(check_settings)
