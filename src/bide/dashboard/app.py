"""The dashboard as an ASGI application."""

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from string import punctuation
from typing import Any
from urllib.parse import quote

from bide.clock import SYSTEM_CLOCK, Clock
from bide.dashboard.access import Access, AccessFunction
from bide.dashboard.actions import act
from bide.dashboard.pages import PAGES
from bide.dashboard.reading import ReadLately, StoreReader
from bide.dashboard.redaction import hidden_names
from bide.dashboard.rendering import (
    LANGUAGES,
    STATIC,
    language_of,
    render,
    static_file,
    zone_of,
)
from bide.dashboard.sessions import Sessions
from bide.dashboard.view import Admit, HtmlPage, PageRefused, PageRequest, PageView, Redirect
from bide.engines.bounded_dict import BoundedDict
from bide.lane.shared import close_lane, open_lane
from bide.logs import logger
from bide.model.errors import AccessDenied, BideError, InvalidArgument, StoreError
from bide.model.limits import MAX_FORM, MAX_LOGGED_PATH, MAX_LOGIN_FORM, MAX_NAME
from bide.observing.logs import printable
from bide.server.access.foreign_pages import refuse_foreign_forms
from bide.server.http.client_address import network_of
from bide.server.limits.gate import Gate, Visit
from bide.server.limits.open_calls import LongCalls
from bide.server.limits.request_bodies import ClientGone, LargeBodies, Receive
from bide.server.limits.slow_reads import SlowReads
from bide.server.logs import Act, ActionLog
from bide.server.operation import Answer
from bide.server.problem import KINDS, ClientText, Problem
from bide.server.response import Response, new_request_id
from bide.server.settings import Settings

SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

COMMON_HEADERS = {
    "content-security-policy": SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every answer."""

NO_STORE = {"cache-control": "no-store"}

HTML, PLAIN = "text/html; charset=utf-8", "text/plain; charset=utf-8"

LANGUAGE_COOKIE = "bide_language"
"""The cookie with the language that a visitor has chosen."""

ZONE_COOKIE = "bide_zone"
"""The cookie with the time zone of a visitor's machine, which a script sets."""

YEAR_SECONDS = 31_536_000

OPEN_PATHS = ("/language", "/login", "/logout")
"""Paths of forms that every visitor may send."""

PAGE_SECONDS = 8.0
"""Seconds that a page may wait for the store, less than htmx waits for the page; an action may take
longer."""

MOST_NAMESPACES = 64
"""For how many namespaces it is kept what was read lately."""

_log = logger("bide.dashboard")


@dataclass(eq=False)
class Dashboard:
    """The dashboard of one store.

    Args:
        url: of the store.
        access: tells what the visitor of a request may see and do.
        hide: names of the parts of bodies, and of the headers, that are not shown.
        action_log: a file for a JSON line per action.
        clock: the clock of the store.
        sessions: identifies visitors by their login, instead of `access`.
        admit: refuses what is beyond a quota.
        gate: what its requests pass; by default one of its own, with the default limits.
        address: returns the address of the client, for the log of actions; "" if it is unknown.
        bodies: bounds the memory of forms, with all else that it counts; by default of forms alone.
    """

    url: str
    access: AccessFunction
    hide: Collection[str] = ()
    action_log: ActionLog = field(default_factory=lambda: ActionLog(None))
    clock: Clock = SYSTEM_CLOCK
    _: KW_ONLY
    sessions: Sessions | None = None
    admit: Admit | None = None
    address: Callable[[Any], str] = lambda scope: (scope.get("client") or ("",))[0]
    gate: Gate | None = None
    bodies: LargeBodies = field(default_factory=lambda: LargeBodies(MAX_FORM))

    def __post_init__(self) -> None:
        self.hide = hidden_names(self.hide)
        self.own_gate = None if self.gate is not None else _gate_of(self.url, self.clock)
        """The gate, unless it is that of a server; then `close` closes its lane."""
        self._lately: BoundedDict[str | None, ReadLately] = BoundedDict(MOST_NAMESPACES)
        """By namespace: what was read lately."""
        self._text = ClientText(self.url)
        """Converts errors to texts for visitors."""

    async def close(self) -> None:
        """Let go of the store."""
        if (gate := self.own_gate) is not None:
            await asyncio.to_thread(gate.slow_reads.close)
            await asyncio.to_thread(close_lane, gate.lane)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; ASGI calls this."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the dashboard serves HTTP alone, and this is {scope['type']!r}")
        visit = self.visit(scope)
        try:
            if (answer := await self.answer(scope, receive, visit)) is not None:
                response = Response(send, visit.request)
                await response.send_whole(answer.status, answer.content, answer.headers)
        finally:
            visit.close()

    def visit(self, scope: Mapping[str, Any]) -> Visit:
        """Return the visit of a request; it ends with `Visit.close`."""
        gate = self.gate or self.own_gate
        assert gate is not None
        return gate.visit(scope, network_of(self.address(scope)), new_request_id())

    async def answer(
        self, scope: Mapping[str, Any], receive: Receive, visit: Visit
    ) -> Answer | None:
        """Return the answer to a request; `None` if the client has closed the connection.

        Args:
            scope: the ASGI scope of the request.
            receive: gives its body.
            visit: executes the commands of the request, within its limits.
        """
        answer = await self._answer(scope, receive, visit)
        if answer is None:
            return None
        return answer._replace(headers={**answer.headers, "x-request-id": visit.request})

    async def _answer(
        self, scope: Mapping[str, Any], receive: Receive, visit: Visit
    ) -> Answer | None:
        """Return the answer without the id of the request; `None`: the client has gone."""
        try:
            request = PageRequest(scope, receive, self.bodies)
        except InvalidArgument as error:
            return _whole(400, str(error).encode(), PLAIN)
        if request.path.startswith("/static/"):
            return _static(request.path.removeprefix("/static/"))
        if request.path == "":
            return _redirect(Redirect(f"{request.base}/"), 308)
        view: PageView | None = None
        try:
            if request.method not in ("GET", "HEAD", "POST"):
                raise PageRefused(405, "not-found")
            if request.method == "POST":
                refuse_foreign_forms(
                    request.header("host"),
                    request.header("origin"),
                    request.header("sec-fetch-site"),
                )
                if request.path in OPEN_PATHS:  # before the limit below: a form has its own
                    await request.read_form(MAX_LOGIN_FORM)
            async with asyncio.timeout(None if request.path == "/do" else PAGE_SECONDS):
                page: HtmlPage | Redirect | None = await self._without_login(request, visit)
                if page is None:
                    access, has_session = await self._visitor(request, visit)
                    view = PageView(
                        request,
                        access,
                        self._reader(visit),
                        self.hide,
                        quotas=self.admit,
                        session=has_session,
                        log=self.action_log.path,
                    )
                    page = await self._page(view, visit)
            answer = self._rendered(request, visit, view, page)
            if view is not None:
                visit.carried(request.body.received + len(answer.content))
            return answer
        except ClientGone:
            return None
        except Exception as error:  # noqa: BLE001  (it is logged, and other requests go on)
            if isinstance(error, Problem) and error.kind.name == "rate-limited":
                # In plain text: a page would be larger than what is left of the limit.
                return _whole(error.kind.status, str(error).encode(), PLAIN, error.headers)
            return self._rendered(request, visit, view, self._refusal(request, error))
        finally:
            request.body.free()

    def _rendered(
        self, request: PageRequest, visit: Visit, view: PageView | None, page: HtmlPage | Redirect
    ) -> Answer:
        """Return a page as HTML; without a view, it shows nothing of the store."""
        if isinstance(page, Redirect):
            return _redirect(page)
        language = language_of(request.cookie(LANGUAGE_COOKIE), request.header("accept-language"))
        view_of_page = view or PageView(request, Access(), self._reader(visit), self.hide)
        context = {
            **page.context,
            "view": view_of_page,
            "now": view_of_page.now,
            "known": view is not None,
            "zone": zone_of(request.cookie(ZONE_COOKIE), view_of_page.now),
        }
        headers = dict(NO_STORE)
        if page.status == 401 and request.header("sec-fetch-site") == "cross-site":
            # A link of another site comes without the cookie of the session; asked for by the
            # page itself, it comes with it.
            headers["refresh"] = "0"
        return _whole(page.status, render(page.template, language, context), HTML, headers)

    async def _without_login(self, request: PageRequest, visit: Visit) -> Redirect | None:
        """Answer what every visitor may do: choose a language, log in and out.

        Returns `None` for all other requests.
        """
        if request.method != "POST" or request.path not in OPEN_PATHS:
            return None
        if request.path == "/language":
            return _choose_language(request)
        if self.sessions is None:
            raise PageRefused(404, "not-found")
        if request.path == "/logout":
            redirect = await self.sessions.log_out(request, visit)
            self._write_acts(request, visit, Act("logout"))
            return redirect
        try:
            redirect = await self.sessions.log_in(request, visit)
        except (Problem, AccessDenied) as error:
            kind = error.kind if isinstance(error, Problem) else KINDS["forbidden"]
            self._write_acts(request, visit, Act("login", result=kind.name))
            status = kind.status if isinstance(error, Problem) else 401
            raise PageRefused(status, "login", str(error)) from None
        self._write_acts(request, visit, Act("login"))
        return redirect

    def _reader(self, visit: Visit) -> StoreReader:
        """Return the store for one request."""
        namespace = visit.caller.namespace
        lately = self._lately.get(namespace)
        if lately is None:
            lately = ReadLately(self.clock)
            self._lately[namespace] = lately
        return StoreReader(self.url, self.clock, visit, lately)

    async def _visitor(self, request: PageRequest, visit: Visit) -> tuple[Access, bool]:
        """Let a visitor in; return what it may, and whether it has logged in."""
        if self.sessions is not None:
            caller, has_session = await self.sessions.visitor(request)
            visit.caller = caller
            visit.admit()
            return self.sessions.access_of(caller), has_session
        result = self.access(request.scope)
        access = await result if inspect.isawaitable(result) else result
        if access is None:
            raise PageRefused(403, "no-access")
        visit.caller = access.caller
        visit.admit()
        return access, False

    async def _page(self, view: PageView, visit: Visit) -> HtmlPage | Redirect:
        """Return the page of a request, or the result of its action."""
        request = view.request
        if request.method == "POST":
            await request.read_form(MAX_FORM)
            if request.path != "/do":
                raise PageRefused(405, "not-found")
            page = await act(view, lambda entry: self._log_action(view, visit, entry))
        elif (read_page := PAGES.get(request.path)) is None:
            raise PageRefused(404, "not-found")
        else:
            page = await read_page(view)
        if view.acts:
            self._write_acts(request, visit, *view.acts, who=view.access.name)
        return page

    def _refusal(self, request: PageRequest, error: Exception) -> HtmlPage:
        """Return the page that says why a request was refused or failed."""
        match error:
            case PageRefused(title="login"):
                back = request.form.get("back", [request.back])[0]
                return HtmlPage("login.html", {"detail": error.detail, "back": back}, error.status)
            case PageRefused():
                status, title, detail = error.status, error.title, error.detail
            case Problem():
                status, title, detail = error.kind.status, "refused", str(error)
            case TimeoutError():
                detail = f"the store does not answer within {PAGE_SECONDS:g} s"
                status, title = 504, "store"
            case AccessDenied():
                status, title, detail = 403, "refused", self._text.of(error)
            case StoreError():
                status, title, detail = 503, "store", self._text.of(error)
            case BideError():
                status, title, detail = 400, "refused", str(error)
            case _:
                path = printable(request.path, MAX_LOGGED_PATH)
                _log.exception("%s %s failed", request.method, path, exc_info=error)
                status, title, detail = 500, "internal", ""
        return HtmlPage("error.html", {"status": status, "title": title, "detail": detail}, status)

    def _log_action(self, view: PageView, visit: Visit, done: Act) -> None:
        """Log an action with its author; what was read before it is read again."""
        if done.result != "forbidden" and done.act != "audit":
            view.store.recent.forget()
        request = view.request
        self._write_acts(request, visit, done, who=view.access.name)
        _log.info(
            "%s by %s from %s: queue %s, messages %s, %s",
            done.act,
            printable(view.access.name, MAX_NAME) or "a visitor",
            printable(self.address(request.scope), MAX_NAME) or "?",
            None if done.queue is None else printable(done.queue, MAX_NAME),
            done.messages,
            done.result,
        )

    def _write_acts(
        self, request: PageRequest, visit: Visit, *acts: Act, who: str | None = None
    ) -> None:
        """Write acts to the action log; `None` for `who`: the name of the token."""
        caller = visit.caller
        if who is None:
            who = caller.name or caller.token or ""
        self.action_log.write(
            acts,
            who=who,
            token=caller.token or "",
            client=self.address(request.scope),
            namespace=caller.namespace,
            request=visit.request,
        )


def _gate_of(url: str, clock: Clock) -> Gate:
    """Return the gate of a dashboard that is mounted in another application."""
    lane, defaults = open_lane(url, clock), Settings()
    slow_calls = LongCalls("slow reads", "limit of readers", defaults.max_slow_reads)
    return Gate(lane, SlowReads(lane), slow_calls, defaults.max_body)


def _redirect(redirect: Redirect, status: int = 303) -> Answer:
    """Send the browser to another page."""
    cookie = {} if redirect.cookie is None else {"set-cookie": redirect.cookie}
    location = quote(redirect.url, safe=punctuation)  # the application may be mounted at any path
    return _whole(status, b"", PLAIN, {**NO_STORE, "location": location, **cookie})


def _static(name: str) -> Answer:
    """Return a file that the pages need."""
    if (kind := STATIC.get(name)) is None:
        return _whole(404, b"there is no such file", PLAIN)
    return _whole(200, static_file(name), kind, {"cache-control": "max-age=3600"})


def _whole(status: int, content: bytes, kind: str, more: Mapping[str, str] = {}) -> Answer:
    """Return an answer with the headers that every answer of the dashboard has."""
    content_headers = {"content-type": kind, "content-length": str(len(content))}
    return Answer(status, content, {**content_headers, **COMMON_HEADERS, **more}, kind)


def asgi(
    store: str, *, access: AccessFunction, hide: Collection[str] = (), action_log: str | None = None
) -> Dashboard:
    """Return the dashboard as an ASGI application, to mount in an application of yours.

    Args:
        store: the URL of the store.
        access: takes the ASGI scope of a request, and returns what its visitor may see and do: an
            `Access`, or `None` for nothing at all. It may be async.
        hide: names of the parts of bodies, and of the headers, that are not shown.
        action_log: a file to which a JSON line is appended for each action.

    Raises:
        InvalidArgument: the URL names no kind of store, `hide` is one text, or the file cannot be
            written.

    Example:
        >>> from bide.dashboard import Access
        >>> dashboard = asgi("memory://", access=lambda scope: Access(name="ann"), hide=["card"])
    """
    return Dashboard(store, access, hide, ActionLog(action_log))


def _choose_language(request: PageRequest) -> Redirect:
    """Remember the language that a visitor chooses."""
    language = request.get("language")
    if language not in LANGUAGES:
        raise PageRefused(404, "not-found")
    path = quote(request.base) or "/"
    cookie = (
        f"{LANGUAGE_COOKIE}={language}; Path={path}; Max-Age={YEAR_SECONDS}; SameSite=Lax; HttpOnly"
    )
    return Redirect(request.inside(request.get("back")), cookie)
