"""Refuse requests of foreign web pages.

Without tokens, every program that can reach the server may do anything. A browser is such a
program, and it runs pages of other sites. Four signs reveal such a page: the `Origin` of its
requests, `Sec-Fetch-Site`, a `Host` name of another site that resolves to this machine (DNS
rebinding), and a content type that needs no preflight.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from bide.engines.registry import is_this_machine
from bide.server.operation import JSON, MSGPACK
from bide.server.problem import Problem
from bide.server.request import ApiRequest

_SAFELISTED = ("", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Content types that a page may send to another site without a preflight (Fetch, 2.2.2)."""


def refuse_pages(request: ApiRequest) -> None:
    """Refuse a request that a page of another site may have sent.

    Raises:
        Problem: the request shows signs of such a page, or its body has a content type that a page
            could send without a preflight.
    """
    refuse_foreign_hosts(request.scope, request.host)
    origin = request.headers.get(b"origin", b"").decode("latin-1")
    if b"origin" in request.headers and not _is_local_page(origin):
        raise Problem(
            "cross-origin",
            f"origin={origin!r} is not a page of this machine, and a server without tokens answers "
            "no other pages; make a token: bide token create",
            field="origin",
        )
    if request.headers.get(b"sec-fetch-site") == b"cross-site":
        raise Problem(
            "cross-origin",
            "a page of another site sent this (sec-fetch-site: cross-site), and a server without "
            "tokens does not answer such pages; make a token: bide token create",
            field="sec-fetch-site",
        )
    if request.has_body:
        _refuse_content_type(request.content_type, takes_bytes=request.operation.takes_bytes)


def _refuse_content_type(content_type: str, *, takes_bytes: bool) -> None:
    """Refuse a content type that a page of another site could send without a preflight.

    Args:
        content_type: that of the body; "" without the header.
        takes_bytes: whether the operation takes bodies of any type.
    """
    if content_type in (JSON, MSGPACK) or content_type.endswith("+json"):
        return
    if takes_bytes and content_type not in _SAFELISTED:
        return
    raise Problem(
        "unsupported-type" if takes_bytes else "malformed",
        f"content-type is {content_type or 'missing'!r}; a server without tokens accepts {JSON}, "
        f"so that no web page can write to it: send content-type: {JSON} (curl --json)",
        field="content-type",
    )


def refuse_foreign_hosts(scope: Mapping[str, Any], host: str | None) -> None:
    """Refuse a request for the host name of another site (DNS rebinding).

    Args:
        scope: the ASGI scope of the request.
        host: its header field `Host`; `None`: it has none.

    Raises:
        Problem: the host is not this machine.
    """
    server = scope.get("server")
    if server is None or host is None:
        return
    _address, port = server
    is_unix_socket = port is None  # which no page can reach
    if not is_unix_socket and not _is_local(host):
        raise Problem(
            "cross-origin",
            f"host={host!r} is not this machine, and a server without tokens serves only this "
            "machine; use 127.0.0.1, or make a token: bide token create",
            field="host",
        )


def refuse_foreign_forms(host: str | None, origin: str | None, site: str | None) -> None:
    """Refuse a form of another site that the browser has sent with the user's cookies.

    Browsers send the origin of a form in `Sec-Fetch-Site` (not over plain HTTP, except to this
    machine) and in `Origin`. A program that sends neither has no user's cookies.

    Args:
        host: the header `Host`.
        origin: the header `Origin`.
        site: the header `Sec-Fetch-Site`.

    Raises:
        Problem: it comes from another site.
    """
    if site is not None:
        is_own = site in ("same-origin", "none")
        sign, field = f"{site=}", "sec-fetch-site"
    else:
        is_own = origin is None or origin.partition("://")[2] == host
        sign, field = f"{origin=}, {host=}", "origin"
    if not is_own:
        detail = f"a page of another site sent this form ({sign})"
        raise Problem("cross-origin", detail, field=field)


@lru_cache(maxsize=256)
def _is_local_page(origin: str) -> bool:
    scheme, colon, host = origin.partition("://")
    return bool(colon) and scheme in ("http", "https") and _is_local(host)


@lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    """Tell whether a host, with or without a port, is this machine."""
    try:
        return is_this_machine(urlsplit(f"//{host}").hostname)
    except ValueError:
        return False
