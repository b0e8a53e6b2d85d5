"""The setting `BIDE`, and the store that it names."""

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections

from bide.engines.registry import split_url

OUTBOX = "bide.contrib.django.outbox"

LIBPQ_NOT = {"isolation_level", "assume_role", "pool", "server_side_binding", "cursor_factory"}
"""The `OPTIONS` of a PostgreSQL database that Django takes itself."""


class Configuration(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="upper"
):
    """What the setting `BIDE` says; all of it may be left out."""

    url: str | None = None
    """The store. By default the environment's `BIDE_URL`, or else the database."""
    test_url: str | None = None
    """The store while Django's tests run. By default one in memory in the place of `URL` and
    `BIDE_URL`, so that no test touches a store in use, or else the database of the tests."""
    database: str = "default"
    """The alias of the database whose transactions puts join."""
    app: str | None = None
    """The app that `manage.py bide worker` runs, as `module:app`; by default that of the kit."""
    hide: list[str] = []
    """Names of the parts of bodies, and of the headers, that the dashboard does not show."""
    action_log: str | None = None
    """A file to which a JSON line is appended for each action in the dashboard."""


@cache
def configuration() -> Configuration:
    """Return the setting `BIDE`, checked.

    Raises:
        ImproperlyConfigured: it has another form, or a name that is not known.
    """
    try:
        return msgspec.convert(getattr(settings, "BIDE", {}), Configuration)
    except msgspec.ValidationError as error:
        names = ", ".join(Configuration.__struct_encode_fields__)
        raise ImproperlyConfigured(
            f"the setting BIDE is wrong: {error}; it is a dict with some of {names}"
        ) from error


def _forget(*, setting: str, **more: Any) -> None:
    """Read the setting again after a test has changed it."""
    if setting == "BIDE":
        configuration.cache_clear()


setting_changed.connect(_forget)


def has_outbox() -> bool:
    """Tell whether the tables of the outbox are part of this project."""
    return OUTBOX in settings.INSTALLED_APPS


def store_url() -> str:
    """Return the URL of the store.

    Raises:
        ImproperlyConfigured: the database cannot be a store, and no other is named.
    """
    bide_settings = configuration()
    if _is_test():
        if bide_settings.test_url is not None:
            return bide_settings.test_url
        if _named_url() is not None:  # a test must not touch that store
            return "memory://"
    return configured_url()


def configured_url() -> str:
    """Return the URL of the store while no tests run. Raises what `store_url` raises."""
    return _named_url() or url_of(configuration().database)


def _named_url() -> str | None:
    """Return the URL in the settings or the environment; `None`: the store is in the database."""
    return configuration().url or os.environ.get("BIDE_URL") or None


def _is_test() -> bool:
    """Tell whether Django's tests run: it keeps there what it puts back at their end."""
    utils = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")


def url_of(alias: str) -> str:
    """Return the URL of the store that lives in a database of Django's.

    While tests run, this is the database of the tests. One in memory has its queues in memory.

    Raises:
        ImproperlyConfigured: it is neither SQLite nor PostgreSQL.
    """
    connection = connections[alias]
    if connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            return "memory://"
        path = os.path.abspath(connection.settings_dict["NAME"])  # noqa: PTH100  (follows no links)
        return f"sqlite:///{quote(path)}"
    if connection.vendor == "postgresql":
        return _postgresql(connection.get_connection_params())
    raise ImproperlyConfigured(
        f"the database {alias!r} is {connection.vendor}, which cannot be a store; name one, as in "
        'BIDE = {"URL": "redis://localhost:6379/0"}'
    )


def _postgresql(parameters: Mapping[str, Any]) -> str:
    """Return a URL with the parameters that libpq gets for a connection."""
    options = {
        key: str(value)
        for key, value in parameters.items()
        if key not in LIBPQ_NOT and isinstance(value, (str, int)) and not isinstance(value, bool)
    }
    options.pop("client_encoding", None)  # bide sets it
    options.pop("prepare_threshold", None)  # psycopg knows it, and libpq does not
    user, password = options.pop("user", ""), options.pop("password", "")
    login = quote(user, safe="")
    if password:
        login += f":{quote(password, safe='')}"
    if login:
        login += "@"
    database = quote(options.pop("dbname", ""), safe="")
    # Host and port stay options: libpq takes several of each, and the path of a socket.
    return f"postgresql://{login}/{database}?{urlencode(options, quote_via=quote)}"


def in_database(url: str, alias: str) -> bool:
    """Tell whether the store at a URL is in a database of Django's."""
    vendor, parts = connections[alias].vendor, split_url(url)
    if vendor == "sqlite" and parts.scheme == "sqlite":
        path, name = unquote(parts.path.removeprefix("/")), connections[alias].settings_dict["NAME"]
        return os.path.realpath(path) == os.path.realpath(str(name))
    if vendor == "postgresql" and parts.scheme in ("postgres", "postgresql"):
        return _place(url) == _place(url_of(alias))
    return False


def _place(url: str) -> tuple[str, ...]:
    """Return host, port and name of the database that a URL of PostgreSQL means."""
    from psycopg.conninfo import conninfo_to_dict

    from bide.engines.postgres.settings import libpq_url

    parameters = conninfo_to_dict(libpq_url(split_url(url)))
    options = {key: str(value) for key, value in parameters.items()}
    if service := options.get("service"):  # a file that libpq reads says which host that is
        return ("service", service, options.get("dbname", ""))
    host, port = options.get("host", ""), options.get("port", "5432")
    return (host, port, options.get("dbname") or options.get("user", ""))
