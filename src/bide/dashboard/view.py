"""What a page is made with: the request, its visitor, and the store."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlencode, urlsplit

from bide.dashboard.access import Access
from bide.dashboard.reading import StoreReader
from bide.dashboard.redaction import Redaction
from bide.engines.registry import mask
from bide.model.commands import Command
from bide.model.errors import AccessDenied, InvalidArgument
from bide.model.identity import check_queue
from bide.model.limits import MAX_URL
from bide.model.times import unix
from bide.model.undoing import Bulk, Undo
from bide.server.limits.request_bodies import LargeBodies, Pause, Receive, RequestBody
from bide.server.logs import Act

FORM_SECONDS = 30.0
"""Seconds in which a form must have come."""

MOST_DIGITS = 18
"""How many digits a number may have."""

MOST_FIELDS = 2_000
"""How many fields a form may have."""

LONGEST_BACK = 3_000
"""Characters that the URL of a page takes, escaped, in a form that needs no login: see
`MAX_LOGIN_FORM`."""

UNSTRIPPED = ("id", "group", "kind")
"""Parameters that name something: spaces at their ends belong to the name."""


class PageRequest:
    """A request.

    Args:
        scope: its ASGI scope; `root_path` is where the dashboard is mounted.
        receive: gives its body.
        bodies: bounds the memory of all forms, and lets others go on while one is decoded.
    """

    def __init__(self, scope: Mapping[str, Any], receive: Receive, bodies: LargeBodies) -> None:
        self.scope = scope
        self.body = RequestBody(receive, bodies)
        self._bodies = bodies
        self.method: str = scope["method"]
        self.base: str = scope.get("root_path", "").rstrip("/")
        """Where the dashboard is mounted; "" at the root."""
        self.path: str = scope["path"].removeprefix(self.base) or ""
        """The path below `base`."""
        query: bytes = scope.get("query_string", b"")
        if len(scope["path"]) + len(query) > MAX_URL:
            raise InvalidArgument(f"the URL is longer than {MAX_URL:,} bytes")
        self.query = _fields(query.decode("latin-1"))
        self.form: dict[str, list[str]] = {}
        """The fields of a form, once it was read; see `read_form`."""
        self._headers = {name: value.decode("latin-1") for name, value in scope["headers"]}

    def header(self, name: str) -> str | None:
        """Return a header by its name in lower case."""
        return self._headers.get(name.encode())

    def get(self, name: str) -> str:
        """Return a parameter of the URL or, for a form, a field; "" if it is missing."""
        first, *_ = self.form.get(name) or self.query.get(name) or [""]
        return first if name in UNSTRIPPED else first.strip()

    def number(self, name: str) -> int | None:
        """Return a parameter that is a whole number, `None` for anything else."""
        text = self.get(name)
        return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None

    def moment(self, name: str) -> int | None:
        """Return a parameter that is a time, in Unix milliseconds; without a zone it is UTC.

        Raises:
            InvalidArgument: it is no time.
        """
        if not (text := self.get(name)):
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"{name}={text!r} is not a time; write 2026-12-01T08:00 (UTC)"
            ) from None
        return unix(moment if moment.tzinfo else moment.replace(tzinfo=UTC), name)

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie, `None` without it."""
        for part in (self.header("cookie") or "").split(";"):
            its_name, equals_sign, value = part.strip().partition("=")
            if equals_sign and its_name == name:
                return value
        return None

    @property
    def here(self) -> str:
        """The URL of this page without its host."""
        query = self.scope.get("query_string", b"").decode("latin-1")
        return _with_query(f"{self.base}{quote(self.path)}", query)

    @property
    def back(self) -> str:
        """The URL of this page, or of the one with the form that was sent, in a form that needs no
        login; if too long, of the first page."""
        here = self.here if self.method == "GET" else self._referer
        return here if here and len(quote(here, safe="")) <= LONGEST_BACK else self.url("")

    @property
    def _referer(self) -> str:
        """The URL without its host of the page that sent a form; "" if it came from a form, too."""
        try:
            url = urlsplit(self.header("referer") or "")
        except ValueError:
            return ""
        if url.path in (f"{self.base}/do", f"{self.base}/login"):  # these answer only forms
            return ""
        return _with_query(url.path, url.query)

    def url(self, page: str, **parameters: Any) -> str:
        """Return the URL of a page; parameters that are `None` or "" are left out."""
        query = urlencode(
            {name: value for name, value in parameters.items() if value not in (None, "")}
        )
        return _with_query(f"{self.base}/{page}", query)

    def inside(self, path: str) -> str:
        """Return a path of the dashboard to go to; that of the first page for any other URL."""
        # Browsers take "//" and "/\" as the beginning of another host.
        is_inside = path.startswith(f"{self.base}/") and not path.startswith(("//", "/\\"))
        return path if is_inside and path.isprintable() and path.isascii() else f"{self.base}/"

    async def read_form(self, most: int) -> None:
        """Read the fields of a form into `form`.

        Args:
            most: bytes that it may have.

        Raises:
            Problem: it is too large, or does not arrive in time.
            InvalidArgument: it has too many fields.
            ClientGone: the client has closed the connection.
        """
        length = (self.header("content-length") or "0").encode()
        data = await self.body.read(length, most, FORM_SECONDS)
        pairs, pause = data.split(b"&"), self._bodies.pauses()
        if len(pairs) > MOST_FIELDS:
            raise _too_many_fields()
        for pair in pairs:
            name, _, value = pair.partition(b"=")
            if value:
                values = self.form.setdefault(await _unquoted(name, pause), [])
                values.append(await _unquoted(value, pause))


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


SLICE = 4_096
"""Bytes of a form that are decoded in one step."""


async def _unquoted(text: bytes, pause: Pause) -> str:
    """Return a part of a form as text."""
    content = bytearray()
    start = 0
    while start < len(text):
        end = start + SLICE
        escape = text.rfind(b"%", end - 2, end)
        if escape >= 0 and end < len(text):  # an escape such as %41 is not cut in two
            end = escape
        content += unquote_to_bytes(text[start:end].replace(b"+", b" "))
        start = end
        await pause()
    return content.decode(errors="replace")


def _fields(text: str) -> dict[str, list[str]]:
    """Return fields of a query or form.

    Raises:
        InvalidArgument: there are too many.
    """
    try:
        return parse_qs(text, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise _too_many_fields() from None


def _too_many_fields() -> InvalidArgument:
    return InvalidArgument(f"there are more than {MOST_FIELDS:,} fields")


class PageRefused(Exception):
    """Ends a request with a page that says why.

    Args:
        status: the status of the answer.
        title: one of the titles of the template `error.html`.
        detail: the cause, and what helps.
    """

    def __init__(self, status: int, title: str, detail: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail


class HtmlPage(NamedTuple):
    """A page to be rendered."""

    template: str
    context: Mapping[str, Any]
    status: int = 200


class Redirect(NamedTuple):
    """Where the browser goes after a form."""

    url: str
    cookie: str | None = None
    """The value of the header `Set-Cookie`."""


Admit = Callable[[Access, Command | Bulk | Undo], Awaitable[AbstractContextManager[Any]]]
"""Refuses what is beyond a quota: takes the visitor's access, and what is to be executed."""


@dataclass(eq=False)
class PageView:
    """One request of one visitor.

    Args:
        request: the request.
        access: what its visitor may see and do.
        store: the store.
        hide: names in lower case of the parts of bodies, and of the headers, that are not shown.
        quotas: refuses what is beyond a quota.
        session: whether the visitor has logged in.
        log: the file of the action log, if one is kept.
    """

    request: PageRequest
    access: Access
    store: StoreReader
    hide: Collection[str]
    quotas: Admit | None = None
    session: bool = False
    log: str | None = None

    def __post_init__(self) -> None:
        self.acts: list[Act] = []
        """What was shown of bodies, for the action log."""
        self.now = self.store.clock.now()
        self.shown = Redaction(self.hide, self.access.bodies)

    # For templates.

    @property
    def shown_store(self) -> str:
        """The namespace of the visitor; without one, the URL of the store without its password."""
        return self.access.namespace or mask(self.store.url)

    def own(self, queue: str) -> str:
        """Return the visitor's name of a queue."""
        return self.access.caller.own(queue) or queue

    # For pages.

    @property
    def refreshes(self) -> bool:
        """Whether the page asks for its own live part again, which has no bodies."""
        return self.request.header("hx-request") == "true"

    def log_shown_bodies(self, queue: str, messages: int, id: str | None = None) -> None:
        """Note for the action log that bodies of messages are shown, if the visitor may see them.

        Args:
            queue: the visitor's name of the queue, or the beginning of the names of several.
            messages: how many.
            id: the id, of one message.
        """
        if self.access.bodies and messages:
            self.acts.append(Act("show", queue or None, messages, target=id))

    def queue(self) -> str:
        """Return the name in the store of the queue that the request is about.

        Raises:
            PageRefused: the request names no queue.
            InvalidArgument: the name is not valid for a queue.
            AccessDenied: the visitor may not see it.
        """
        if not (name := self.request.get("queue")):
            raise PageRefused(404, "not-found")
        full = check_queue(self.access.caller.full(name))
        if not self.access.may_read(full):
            raise AccessDenied(f"queue={name!r} is shown to those who may stop workers")
        return full

    async def admit(self, command: Command | Bulk | Undo) -> AbstractContextManager[Any]:
        """Refuse a command that is beyond a quota of the visitor's namespace.

        Returns:
            A context in which to execute the command: until then, others leave it room.

        Raises:
            Problem: the command is beyond a quota.
        """
        return nullcontext() if self.quotas is None else await self.quotas(self.access, command)
