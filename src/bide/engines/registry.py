"""From a URL to an engine."""

import importlib
import os
import re
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from bide.engines.port import Engine, Guest
from bide.logs import logger
from bide.model.errors import InvalidArgument
from bide.model.identity import text_of
from bide.model.times import milliseconds

_log = logger("bide.store")

DEFAULT_URL = "sqlite:///bide.db"


def default_url() -> str:
    """Return the URL of the default store."""
    url = os.environ.get("BIDE_URL")
    if url == "":
        _warn_of_empty_variable()
    return url or DEFAULT_URL


def named_url(*urls: str | None) -> str:
    """Return the first URL that is given; the default one if none is.

    An empty one is given, too, and `opener` refuses it: it may be that of an unset variable.
    """
    for url in urls:
        if url is not None:
            return url
    return default_url()


@cache
def _warn_of_empty_variable() -> None:
    """Say once that the environment names no store, though it seems to."""
    _log.warning(
        "BIDE_URL is empty, as if it were not set: the store is %s, in the folder of this process",
        DEFAULT_URL,
    )


ENTRY_POINTS = "bide.engines"
"""The group of entry points in which other packages offer engines: scheme = "module:function"."""

_BUILT_IN = {
    "http": "http",
    "https": "http",
    "memory": "memory",
    "sqlite": "sqlite",
    "postgres": "postgres",
    "postgresql": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+unix": "redis",
    "redis+sentinel": "redis",
    "rediss+sentinel": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
}
"""The package of each scheme here, and the extra of pip that it needs, if any."""

_GUESTS = ("postgres", "sqlite")
"""The packages that execute commands in the user's own transactions."""

# Up to the last @ of the URL, because a password may contain an unencoded / ? # or @. The user name
# is shown, and the password is not. Without a colon it may be a token, as in http://token@host. A
# file, as in sqlite:///a@b.db, has neither.
_PASSWORD = re.compile(
    r"^((?:[a-z0-9+.-]+://)?+(?!/)(?:[^:/?#@]*:)?).*@", re.IGNORECASE | re.DOTALL
)
_OPTION = re.compile(r"([?&](?:(?:sentinel_)?password|token|secret|key)=)[^&#]*", re.IGNORECASE)

_AUTHORITY = re.compile(r"[a-z0-9+.-]+://([^/?#]*)", re.IGNORECASE)

_PORT = re.compile(r"[\w.-]+:(\d+)(?=/|$)", re.ASCII)
_SCHEMES_BY_PORT = {"5432": "postgresql", "6379": "redis", "8642": "http"}
"""What servers at their usual ports speak, for URLs that do not say it."""

FromUrl = Callable[[SplitResult], Any]
"""Checks a URL, and returns what opens the store that it names, any number of times; or a guest."""


def split_url(url: str) -> SplitResult:
    """Return the parts of the URL of a store, a broker or a database.

    Raises:
        InvalidArgument: it is no URL. The text shows nothing of a password, as Python's own can.
    """
    url = _checked(url)
    if url != url.strip():
        raise InvalidArgument(f"url={mask(url)!r} begins or ends with a blank; remove it")
    if not url.isascii() and text_of(url) != url:
        raise InvalidArgument(f"url={text_of(mask(url))!r} is not valid Unicode text")
    authority = _AUTHORITY.match(url)
    user = authority[1].rpartition("@")[0] if authority else ""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise invalid_url(url, error) from None
    if "[" in user or "]" in user:
        raise invalid_url(url, ValueError())
    if parts.netloc and any("@" in text for text in _after_host(parts)):
        raise InvalidArgument(
            f"url={mask(url)!r} has an @ behind its host; if it ends a password, write / ? # and @ "
            "in the password as %2F %3F %23 and %40"
        )
    return parts


def invalid_url(url: str, error: ValueError) -> InvalidArgument:
    """Return the error for what is no URL. Python's own may show a part of a password."""
    if "@" in url:
        return InvalidArgument(
            f"url={mask(url)!r} is not a valid URL; if the password has one of / ? # @ [ ] in it, "
            "write that as %2F %3F %23 %40 %5B %5D"
        )
    return InvalidArgument(f"url={mask(url)!r} is not a valid URL: {error}")


def opener(url: str) -> Callable[[], Engine]:
    """Return what opens the store at a URL, any number of times.

    Raises:
        InvalidArgument: the URL names no known kind of store, or is malformed.
    """
    parts = split_url(url)
    target = _target(parts.scheme)
    if target is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted({**_offered(), **_BUILT_IN}))
        hint = f"; {_hint(mask(url))}" if "://" not in url else ""
        raise InvalidArgument(
            f"url={mask(url)!r} names no store: it must begin with one of {known}{hint}"
        )
    if not (rest := url[len(parts.scheme) + 1 :]).startswith("//"):
        rest = f"/{rest}" if parts.scheme == "sqlite" else rest.lstrip("/")
        if _PORT.match(url):  # redis:6379 is a host of this name
            rest = url
        corrected = f"{parts.scheme}://{rest}"
        raise InvalidArgument(f"url={mask(url)!r} has no :// in it; write {mask(corrected)}")
    open_engine: Callable[[], Engine] = _load(target, parts.scheme)(parts)
    return open_engine


def _hint(url: str) -> str:
    """Return what to write for a URL without a scheme: a server at its usual port, or a file."""
    if not url:
        return f"leave url out for the store of BIDE_URL, or else {DEFAULT_URL}"
    port = _PORT.match(url)
    scheme = _SCHEMES_BY_PORT.get(port[1]) if port else None
    if scheme is not None:
        return f"for this server write {scheme}://{url}"
    return f"for a file write sqlite:///{url}"


@cache
def guest(url: str) -> Guest | None:
    """Return this process's guest of the store at a URL; `None` if this kind has none.

    Args:
        url: an absolute one, see `absolute`.
    """
    parts = split_url(url)
    package = _BUILT_IN.get(parts.scheme)
    if package not in _GUESTS:
        return None
    made: Guest = _load(f"bide.engines.{package}.guest:from_url", parts.scheme)(parts)
    return made


def lives_alone(url: str) -> bool:
    """Return whether a store exists in one process only."""
    return split_url(url).scheme == "memory"


def module_of(scheme: str) -> str:
    """Return the name of the package of an engine, whose scheme must be known."""
    return (_target(scheme) or "").partition(":")[0]


def _target(scheme: str) -> str | None:
    if package := _BUILT_IN.get(scheme):
        return f"bide.engines.{package}:from_url"
    return _offered().get(scheme)


def _after_host(parts: SplitResult) -> list[str]:
    """Return the parts behind the host, without the values of options, which may have an @."""
    return [parts.path, parts.fragment, *(name for name, _ in parse_qsl(parts.query, True))]


def absolute(url: str) -> str:
    """Return a URL that names the same store whatever the working directory is.

    Raises:
        InvalidArgument: it is no text, but a path, for example.

    Example:
        >>> absolute("sqlite:///bide.db") == f"sqlite:///{Path.cwd()}/bide.db"
        True
    """
    scheme, file = _checked(url)[:10], url[10:]
    if scheme != "sqlite:///" or file.startswith("/"):
        return url
    return f"{scheme}{quote(str(Path.cwd()))}/{file}"


def _checked(url: str) -> str:
    if not isinstance(url, str):
        raise InvalidArgument(
            f"url={url!r} must be a str; for a file write 'sqlite:///path/to/bide.db'"
        )
    return url


def _offered() -> dict[str, str]:
    """Return the engines of other packages."""
    from importlib.metadata import entry_points  # here: this import takes as long as all of bide

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def _load(target: str, scheme: str) -> FromUrl:
    """Import the function that makes the engine of a scheme.

    Args:
        target: its module and name, with a colon between them.
        scheme: of the URL, for the error.

    Raises:
        InvalidArgument: a package that the engine needs is not installed.
    """
    module, _, name = target.partition(":")
    try:
        function: FromUrl = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise InvalidArgument(
            f"{scheme}:// needs the package {error.name!r}, which is not installed: "
            f"pip install '{package}[{_BUILT_IN.get(scheme, scheme.partition('+')[0])}]'"
        ) from error
    return function


def options(parts: SplitResult, *allowed: str) -> dict[str, str]:
    """Return the options behind the question mark of a URL.

    Raises:
        InvalidArgument: when one of them is not `allowed`, or has no value.
    """
    chosen = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in chosen.items():
        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise InvalidArgument(f"{parts.scheme}:// has no option {name!r}; it knows: {known}")
        if not value:
            raise InvalidArgument(f"the option {name!r} in the URL has no value: ?{name}=...")
    return chosen


def seconds(text: str, name: str) -> float:
    """Return the duration that an option of a URL names; a plain number counts seconds.

    Raises:
        InvalidArgument: it is no duration.

    Example:
        >>> seconds("1m", "timeout"), seconds("0.5", "timeout")
        (60.0, 0.5)
    """
    value: str | float
    try:
        value = float(text)
    except ValueError:
        value = text
    return milliseconds(value, f"?{name}") / 1000


def mask(url: str) -> str:
    """Return the URL with its password hidden, for output.

    Example:
        >>> mask("redis://app:secret@cache:6379/0")
        'redis://app:***@cache:6379/0'
    """
    return _OPTION.sub(r"\1***", _PASSWORD.sub(r"\1***@", url))


def is_server(url: str) -> bool:
    """Return whether the URL of a store names another bide server."""
    return url.partition(":")[0].lower() in ("http", "https")  # also of a URL that is wrong


def is_this_machine(host: str | None) -> bool:
    """Return whether a host is the loopback of this machine.

    Example:
        >>> is_this_machine("localhost"), is_this_machine("::1"), is_this_machine("mq")
        (True, True, False)
    """
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def file_of(url: str) -> Path | None:
    """Return the absolute path of the file that a store is in; `None` if it is in none.

    Example:
        >>> file_of("sqlite:////srv/bide.db"), file_of("redis://cache")
        (PosixPath('/srv/bide.db'), None)
    """
    parts = split_url(url)
    return Path(unquote(parts.path[1:])).absolute() if parts.scheme == "sqlite" else None
