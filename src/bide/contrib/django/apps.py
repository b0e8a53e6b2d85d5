"""What Django learns of the kit when it starts."""

from typing import Any

import django
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from bide.contrib.django.conf import configuration, configured_url, has_outbox, in_database
from bide.engines.registry import lives_alone, mask, opener
from bide.model.errors import InvalidArgument


class BideConfig(AppConfig):
    """The application `bide`."""

    name = "bide.contrib.django"
    label = "bide"
    verbose_name = "bide"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        register(check_settings)
        register(check_tasks)


def check_settings(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    """Return what is wrong, or may surprise, with the store and the database of the settings."""
    try:
        bide_settings = configuration()
        connection = connections[bide_settings.database]
        url = configured_url()
        for each_url in (url, bide_settings.test_url or url):
            opener(each_url)  # raises if it is not the URL of a store
    except (ImproperlyConfigured, InvalidArgument) as error:
        return [Error(str(error), id="bide.E001")]
    except ConnectionDoesNotExist:
        hint = f"use one of: {', '.join(connections)}"
        text = f"BIDE['DATABASE'] = {bide_settings.database!r} is not an alias in DATABASES"
        return [Error(text, hint=hint, id="bide.E002")]
    if lives_alone(url):
        if connection.vendor == "sqlite" and connection.is_in_memory_db():
            return []  # most likely it runs tests
        text = f"the store {url} lives in one process: a worker never sees what a view puts"
        return [Warning(text, hint="name a store that processes share", id="bide.W001")]
    is_in_database = in_database(url, bide_settings.database)
    messages: list[CheckMessage] = []
    if not is_in_database:
        messages += _check_outbox(url, bide_settings.database, connection)
    if is_in_database or has_outbox():
        messages += _check_transactions(bide_settings.database, connection)
    if bide_settings.app is not None and ":" not in bide_settings.app:
        text = f"BIDE['APP'] = {bide_settings.app!r} must be module:app, as in 'shop.queues:app'"
        messages.append(Error(text, id="bide.E004"))
    return messages


def check_tasks(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    """Return what is wrong with `TASKS` before Django 6; from then on, the backend says it."""
    if django.VERSION >= (6,):
        return []
    return [
        Error(
            f"TASKS[{alias!r}] names the backend of bide, which needs Django 6; for that of the "
            "package django-tasks it is not made",
            hint="use tasks of bide: from bide.contrib.django import app; @app.task",
            id="bide.E006",
        )
        for alias, options in getattr(settings, "TASKS", {}).items()
        if str(options.get("BACKEND", "")).startswith("bide.contrib.django.")
    ]


def _check_outbox(url: str, alias: str, connection: Any) -> list[CheckMessage]:
    """Return what is wrong with the outbox, for a store that is not in the database."""
    if has_outbox() and connection.vendor not in ("sqlite", "postgresql"):
        text = f"the outbox cannot be in a database of {connection.vendor}"
        hint = "remove bide.contrib.django.outbox from INSTALLED_APPS; it is for PostgreSQL, SQLite"
        return [Error(text, hint=hint, id="bide.E003")]
    if not has_outbox():
        text = (
            f"the store {mask(url)} is not in the database {alias!r}: inside of "
            "transaction.atomic() a put waits for the commit, and is lost if the process dies "
            "right after it"
        )
        hint = "add 'bide.contrib.django.outbox' to INSTALLED_APPS, or silence this check"
        return [Warning(text, hint=hint, id="bide.W002")]
    return []


def _check_transactions(alias: str, connection: Any) -> list[CheckMessage]:
    """Return what may surprise in transactions in which queues put."""
    options = connection.settings_dict.get("OPTIONS", {})
    # Such a transaction waits at its beginning for those of others; another one only once it
    # writes, and then SQLite lets it fail instead, if it has read before.
    waits_at_begin = options.get("transaction_mode") in ("IMMEDIATE", "EXCLUSIVE")
    if connection.vendor != "sqlite" or waits_at_begin:
        return []
    text = (
        "a transaction that reads before it puts fails with StoreBusy when another process has "
        "written meanwhile"
    )
    hint = f"DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}"
    return [Warning(text, hint=hint, id="bide.W003")]
