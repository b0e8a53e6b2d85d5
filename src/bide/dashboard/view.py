"""What a page is made with: the request, its visitor, and the store."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bide.dashboard import redaction
from bide.dashboard.access import Access
from bide.dashboard.reading import StoreReader
from bide.dashboard.request import Request
from bide.engines.registry import mask
from bide.model.commands import Edit
from bide.model.ended import End
from bide.model.identity import check_queue
from bide.model.message import Item, Message


class Refused(Exception):
    """Ends a request with a page that says why.

    Args:
        status: of the answer.
        title: one of the titles of the template `error.html`.
        detail: the cause, and what helps.
    """

    def __init__(self, status: int, title: str, detail: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail


class Page(NamedTuple):
    """A page to be rendered."""

    template: str
    context: Mapping[str, Any]
    status: int = 200


class Redirect(NamedTuple):
    """Where the browser goes after a form."""

    url: str
    cookie: str | None = None
    """The value of the header `Set-Cookie`."""


Admit = Callable[[Access, str, Item | Edit], Awaitable[None]]
"""Refuses what is beyond a quota: takes the visitor's access, the queue, and a message to put, or
what is to be changed of messages."""


@dataclass(eq=False)
class View:
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

    request: Request
    access: Access
    store: StoreReader
    hide: Collection[str]
    quotas: Admit | None = None
    session: bool = False
    log: str | None = None

    def __post_init__(self) -> None:
        self.now = self.store.clock.now()

    # For templates.

    @property
    def shown_store(self) -> str:
        """The URL of the store without its password."""
        return mask(self.store.url)

    def may(self, action: str) -> bool:
        """Tell whether the visitor may do something."""
        return self.access.may(action)

    def url(self, page: str, **parameters: Any) -> str:
        """Return the URL of a page."""
        return self.request.url(page, **parameters)

    def own(self, queue: str) -> str:
        """Return the visitor's name of a queue."""
        return self.access.caller.own(queue) or queue

    def preview(self, message: Message) -> str:
        """Return the beginning of a body, as far as the visitor may see it."""
        return redaction.preview_of(message, self.hide) if self.access.bodies else ""

    def body(self, message: Message) -> redaction.Shown | None:
        """Return a body to be read, `None` if the visitor may not see it."""
        return redaction.body_of(message, self.hide) if self.access.bodies else None

    def editable(self, message: Message) -> str | None:
        """Return a body to be edited, `None` unless it is JSON that the visitor sees all of."""
        shown = self.body(message)
        if shown is None or shown.cut or not message.json:
            return None
        return shown.text if shown == redaction.body_of(message, ()) else None

    def result(self, end: End) -> str:
        """Return a result to be read, as far as the visitor may see it."""
        return redaction.result_of(end.result or b"", self.hide)

    def redacted(self, message: Message) -> Message:
        """Return a message without the parts that nobody is shown."""
        return redaction.redacted(message, self.hide) if self.hide else message

    def headers(self, message: Message) -> Mapping[str, str]:
        """Return the headers that the visitor may see."""
        return redaction.headers_of(message, self.hide) if self.access.bodies else {}

    # For pages.

    def queue(self) -> str:
        """Return the name in the store of the queue that the request is about.

        Raises:
            Refused: it names none.
            InvalidArgument: it is no name of a queue.
            AccessDenied: the visitor may not see it.
        """
        if not (name := self.request.get("queue")):
            raise Refused(404, "not-found")
        return check_queue(self.access.caller.full(name))

    async def admit(self, queue: str, what: Item | Edit) -> None:
        """Refuse a message, or a change, that is beyond a quota of the visitor's namespace.

        Raises:
            Problem: it is.
        """
        if self.quotas is not None:
            await self.quotas(self.access, queue, what)
