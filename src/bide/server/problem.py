"""Problems: every error as an RFC 9457 document that names the field and the fix.

Errors suggest similar names or values, and do not contain the location of the store.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec import inspect

from bide.engines.registry import mask, split_url
from bide.logs import logger
from bide.model.body import why_unreadable
from bide.model.errors import BideError, InvalidArgument, StoreError
from bide.model.limits import MAX_DETAIL, MAX_TYPO
from bide.model.options import OPTIONS
from bide.model.replies import Outcome

_PLACE_IN_ERROR = re.compile(
    r" - at `(?:key in )?\$([^`]*)`$"
)  # linear, whatever name is in the text
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")

_type_info = cache(inspect.type_info)  # 2 ms for all commands


def would_fit(kind: Any, error: str) -> str:
    """Return a similar name, or all names or values that are allowed; "" for other errors.

    Args:
        kind: the type to which something was decoded.
        error: the error of msgspec.

    Example:
        >>> from bide.server.settings import Settings
        >>> would_fit(Settings, "Invalid enum value 'non' - at `$.auth`")
        'there are auto, off, required'
        >>> would_fit(Settings, "Object contains unknown field `prot`")
        'did you mean port?'
    """
    unknown, place = _UNKNOWN_FIELD.search(error), _PLACE_IN_ERROR.search(error)
    types = _types_within(_type_info(kind))
    similar_names: list[str] = []
    if unknown is not None:
        names = [node.encode_name for node in types if isinstance(node, inspect.Field)]
        similar_names = get_close_matches(unknown[1][: MAX_TYPO + 1], names, 1)
    elif error.startswith("Invalid enum value") and place is not None:
        path_without_indexes = re.sub(r"\[.*?\]", "", place[1])
        field = path_without_indexes.rpartition(".")[2]
        fields = tuple(node for node in types if getattr(node, "encode_name", None) == field)
        literals = [node for node in _types_within(fields) if isinstance(node, inspect.LiteralType)]
        names = [str(value) for literal in literals for value in literal.values]
    else:
        return ""
    if similar_names:
        return f"did you mean {similar_names[0]}?"
    return f"there are {', '.join(dict.fromkeys(names))}"


def _types_within(node: object) -> Iterator[Any]:
    """Yield a description of a type by msgspec, its fields, and all types within it."""
    yield node
    inner = msgspec.structs.astuple(node) if isinstance(node, msgspec.Struct) else node
    if isinstance(inner, tuple):
        for element in inner:
            yield from _types_within(element)


class Kind(NamedTuple):
    """A kind of problem: its name in the URI of its type, its status, and its title."""

    name: str
    status: int
    title: str
    error: str | None = None
    """The exception class that a client in Python raises for it."""
    retry_after: int | None = None
    """Seconds after which trying again may help."""


_KINDS = (
    Kind("invalid-argument", 400, "Invalid value", "InvalidArgument"),
    Kind("not-empty", 409, "The queue is not empty", "NotEmpty"),
    Kind("already-exists", 409, "The id is taken", "AlreadyExists"),
    Kind("group-closed", 409, "The group is closed", "GroupClosed"),
    Kind("lease-lost", 409, "The lease is over", "LeaseLost"),
    Kind("nothing-to-undo", 404, "Nothing to undo", "NothingToUndo"),
    Kind("empty", 404, "Nothing fell due", "Empty"),
    Kind("stopping", 503, "The server is stopping", "Closed", 1),
    Kind("unsupported", 501, "The store cannot do this", "Unsupported"),
    Kind("store-unavailable", 503, "The store cannot be reached", "StoreUnavailable", 1),
    Kind("store-busy", 503, "The store is locked", "StoreBusy", 1),
    Kind("outcome-unknown", 504, "Outcome unknown", "OutcomeUnknown"),
    Kind("store-full", 507, "The store is full", "StoreFull"),
    Kind("store-read-only", 503, "The store cannot be written", "StoreReadOnly"),
    Kind("store-corrupt", 500, "The store is damaged", "StoreCorrupt"),
    Kind("not-a-store", 500, "This is not a bide store", "NotAStore"),
    Kind("schema-too-new", 500, "A newer bide is needed", "SchemaTooNew"),
    Kind("forbidden", 403, "The token does not allow this", "AccessDenied"),
    Kind("store-error", 500, "The store failed", "StoreError"),
    Kind("malformed", 400, "The request cannot be read"),
    Kind("cross-origin", 403, "Cross-site request"),
    Kind("unauthorized", 401, "A token is needed"),
    Kind("not-found", 404, "Not found"),
    Kind("method-not-allowed", 405, "The method is not allowed here"),
    Kind("timeout", 408, "The request did not arrive in time"),
    Kind("conflict", 409, "Too late"),
    Kind("precondition-failed", 412, "The resource has changed"),
    Kind("too-large", 413, "Too large"),
    Kind("unsupported-type", 415, "Unsupported content type"),
    Kind("too-many-logins", 429, "Too many wrong tokens from one address", None, 1),
    Kind("too-many-connections", 429, "Too many connections from one address", None, 1),
    Kind("too-many-open", 429, "Too many streams or waiting claims", None, 1),
    Kind("head-too-large", 431, "The head of the request is too large"),
    Kind("rate-limited", 429, "Rate limit exceeded", None, 1),
    Kind("quota-exceeded", 507, "The namespace is full"),
    Kind("issuer-unavailable", 503, "The issuer of JWTs cannot be reached", None, 5),
    Kind("overloaded", 503, "Too many requests in progress", None, 1),
    Kind("internal", 500, "Internal server error"),
)

KINDS = {kind.name: kind for kind in _KINDS}
"""All kinds of problems, by name."""

_KIND_OF_ERROR = {kind.error: kind for kind in _KINDS}


def kind_of(error: str) -> str:
    """Return the name of the kind of problem for an exception of bide's.

    Example:
        >>> kind_of("NothingToUndo"), kind_of("WrongContext")
        ('nothing-to-undo', 'internal')
    """
    return _KIND_OF_ERROR.get(error, KINDS["internal"]).name


class ProblemDocument(msgspec.Struct, omit_defaults=True):
    """An error in the form of RFC 9457."""

    type: str
    """A URI that names the kind of problem; the page at /docs lists them."""
    title: str
    status: int
    detail: str
    """The cause and the fix."""
    field: str | None = None
    """The part of the request that is wrong."""
    error: str | None = None
    """The name of the exception that bide raises for this in Python."""
    outcomes: list[Outcome] | None = None
    """The states of the messages that the request named."""


class Problem(Exception):
    """Ends a request with a problem document.

    Args:
        kind: the name of one of `KINDS`.
        detail: the cause and the fix.
        field: the part of the request that is wrong.
        outcomes: the states of the messages that the request named.
        headers: headers of the answer.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        field: str | None = None,
        outcomes: list[Outcome] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = KINDS[kind]
        self.field = field
        self.outcomes = outcomes
        self.headers = dict(headers or {})
        if self.kind.retry_after is not None:
            self.headers.setdefault("retry-after", str(self.kind.retry_after))

    @property
    def document(self) -> ProblemDocument:
        """The document that is sent."""
        return ProblemDocument(
            type=f"/docs#problem-{self.kind.name}",
            title=self.kind.title,
            status=self.kind.status,
            detail=_cut(str(self)),
            field=_cut(self.field or "") or None,
            error=self.kind.error,
            outcomes=self.outcomes,
        )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_DETAIL else f"{text[:MAX_DETAIL]}..."


def invalid(field: str, detail: str) -> Problem:
    """Return the problem of a value that is not valid."""
    return Problem("invalid-argument", detail, field=field)


_FIELD = re.compile(
    rf"(\w+(?==)|(?:{'|'.join(OPTIONS)}|after|at|before|body|bucket|ceiling|concurrency|count|"
    r"cursor|delay|expires|failures|first|headers|id|if_due|latest|lease|limit|name|on_conflict|"
    r"overlap|page|probe|queue|rate|secret|state|timeout|undo|url|wait)(?=[ \[]))"
)
"""The name of an argument at the beginning of an error text: before `=`, or one that is known."""


def of_bide(error: BideError, text: str) -> Problem:
    """Convert an exception of bide to a problem with the text for clients.

    The text of `InvalidArgument` begins with the name of the argument.
    """
    # The kind of the nearest class that has one.
    class_names = [base.__name__ for base in type(error).__mro__]
    kinds = [_KIND_OF_ERROR[name] for name in class_names if name in _KIND_OF_ERROR]
    match = _FIELD.match(text) if isinstance(error, InvalidArgument) else None
    name = kinds[0].name if kinds else "internal"
    return Problem(name, text, field=match[1] if match else None)


UNREADABLE = msgspec.DecodeError, UnicodeDecodeError, RecursionError
"""The errors of a decoder."""


def of_decoding(
    error: Exception, kind: Any, what: str = "The body", *, data: bytes = b""
) -> Problem:
    """Convert an error of a decoder to a problem.

    Args:
        error: one of `UNREADABLE`.
        kind: the type to which the request, or a part of it, was decoded.
        what: the name of what was decoded, for the text.
        data: the JSON, if it is known.
    """
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        text = why_unreadable(data, error)
        return Problem("malformed", f"{what} cannot be read: {text}")
    fix = would_fit(kind, text)
    place = _PLACE_IN_ERROR.search(text)
    path = place[1].removeprefix(".") if place else ""
    last_field = re.search(r"(?:unknown|missing required) field `([^`]*)`", text)
    field = ".".join(filter(None, (path, last_field[1] if last_field else "")))
    detail = "; ".join(filter(None, (f"{what} does not fit: {text}", fix)))
    return Problem("invalid-argument", detail, field=field or None)


@contextmanager
def within(place: str) -> Iterator[None]:
    """Add the place of a part of a request to the errors that the block raises about this part.

    Raises:
        Problem: the block raised an error.
    """
    try:
        yield
    except Problem as problem:
        problem.args = (f"{place}: {problem}",)
        field = problem.field or ""
        dot = "" if not field or field.startswith("[") else "."
        problem.field = f"{place}{dot}{field}"
        raise
    except InvalidArgument as error:
        raise invalid(place, f"{place}: {error}") from None


@contextmanager
def naming_server() -> Iterator[None]:
    """Say in the errors of the block that a package is missing here, and not at the client.

    Raises:
        InvalidArgument: the block raised it.
    """
    try:
        yield
    except InvalidArgument as error:
        if isinstance(error.__cause__, ImportError):
            raise InvalidArgument(f"on the server, {error}") from error
        raise


def as_json(problem: Problem) -> tuple[int, bytes, dict[str, Any]]:
    """Return the status, the body and the headers of the answer."""
    headers = {"content-type": "application/problem+json", **problem.headers}
    return problem.kind.status, msgspec.json.encode(problem.document), headers


LOG_EVERY = 10.0
"""The minimum number of seconds between two log lines of the same error of the store."""

_FILE_PATH = re.compile(r"(?<![\w/.:<])/[^\s/:;,()'\"]+(?:/[^\s/:;,()'\"]+)+")
"""An absolute path of at least two parts."""

_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?"
    r"|(?<![\w:])(?=[\da-f:]*::|(?:[\da-f]{1,4}:){7})[\da-f:]{3,39}(?:%\w+)?(?![\w:])",
    re.IGNORECASE,
)
"""An IPv4 address, and a port; or an IPv6 address."""

_log = logger("bide.server")


def _hosts_in(netloc: str, path: str) -> re.Pattern[str]:
    """Return a pattern that finds the hosts of a URL in a text.

    A name without a dot may be a word of the text: it is found in quotes, or with a port or the
    path.
    """
    patterns: list[str] = []
    url_path = re.escape(path.rstrip("/"))
    hosts = netloc.rpartition("@")[2].split(",")
    for host in hosts:
        if name := re.sub(r":\d*$", "", host).strip("[]"):
            escaped = re.escape(name)
            in_quotes = rf"""["']{escaped}["']"""
            is_unmistakable = re.search(r"[.:]", name) is not None
            condition = "" if is_unmistakable else rf"(?=:\d|{url_path or _NOTHING})"
            port_and_path = rf"(?::\d+)?(?:{url_path})?(?![\w-])"
            patterns += [in_quotes, rf"(?<![\w.-])\[?{escaped}\]?{condition}{port_and_path}"]
    return re.compile("|".join(patterns) or _NOTHING)


_NOTHING = "(?!)"
"""A pattern that never matches."""


class ClientText:
    """Converts errors to texts for clients. The server's log has the full text.

    Args:
        store: the URL of the store.
    """

    def __init__(self, store: str) -> None:
        parts = split_url(store)
        self._hosts = _hosts_in(parts.netloc, parts.path)
        """Finds the hosts of the store in a text."""
        self._places = [(mask(store), "the store")]
        """Locations of the store, each with the words that replace it."""
        url_path = unquote(parts.path)
        if parts.scheme == "sqlite":  # sqlite:///bide.db is relative, sqlite:////tmp/bide.db is not
            url_path = url_path.removeprefix("/")
        path = Path(url_path).absolute()
        if not parts.netloc and str(path) != "/":
            self._places.append((str(path), "the store"))
            if str(path.parent) != "/":
                self._places.append((str(path.parent), "the folder of the store"))
        self._logged_text = ""
        """The last text that was logged."""
        self._logged_at = 0.0
        """When it was, in seconds of the monotonic clock."""

    def of(self, error: BideError) -> str:
        """Return the text of an error; of a `StoreError`, without the location of the store."""
        return self.without_places(str(error)) if isinstance(error, StoreError) else str(error)

    def without_places(self, text: str) -> str:
        """Remove the location of the store, addresses and paths from a text; log it if it has any.

        /readyz, which needs no token, shows such texts.
        """
        safe = text
        for place, words in self._places:
            safe = safe.replace(place, words)
        for pattern, words in ((self._hosts, "the store"), (_ADDRESS, "..."), (_FILE_PATH, "...")):
            safe = pattern.sub(words, safe)
        now = time.monotonic()
        is_news = text != self._logged_text or now - self._logged_at >= LOG_EVERY
        if safe != text and is_news:
            self._logged_text, self._logged_at = text, now
            _log.warning("%s", text)
        return safe
