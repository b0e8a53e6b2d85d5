"""Protect a server without tokens from web pages.

Without tokens, every program that can reach the server may do anything. A browser is such a
program, and it runs the pages of strangers. Four things give a page away: the `Origin` of its
requests, `Sec-Fetch-Site`, the `Host` of a name of its own that leads to this machine (DNS
rebinding), and a content type that needs no preflight.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from bide.engines.registry import is_this_machine
from bide.server.call import Call
from bide.server.operation import JSON, MSGPACK
from bide.server.problem import Problem

_SAFELISTED = ("", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Content types that a page may send to another site without asking first (Fetch, 2.2.2)."""


def refuse_pages(call: Call) -> None:
    """Refuse a request that a page of another site may have sent.

    Raises:
        Problem: the request carries a sign of such a page, or its body has a content type that a
            page could send without a preflight.
    """
    refuse_foreign_hosts(call.scope, call.header("host"))
    origin = call.header("origin")
    if origin is not None and not _is_local_page(origin):
        raise Problem(
            "cross-origin",
            f"origin={origin!r} is not a page of this machine, and a server without tokens serves "
            "no other pages; make a token: bide token create",
            field="origin",
        )
    if call.header("sec-fetch-site") == "cross-site":
        raise Problem(
            "cross-origin",
            "a page of another site sent this (sec-fetch-site: cross-site), and a server without "
            "tokens does not serve such pages; make a token: bide token create",
            field="sec-fetch-site",
        )
    if call.has_body:
        _refuse_safelisted(call)


def refuse_foreign_hosts(scope: Mapping[str, Any], host: str | None) -> None:
    """Refuse a request for the host name of a page that leads to this machine (DNS rebinding).

    Raises:
        Problem: the host is not this machine.
    """
    server = scope.get("server")
    if server is not None and server[1] is not None and host is not None and not _is_local(host):
        raise Problem(
            "cross-origin",
            f"host={host!r} is not this machine, and a server without tokens serves only this "
            "machine; ask for 127.0.0.1, or make a token: bide token create",
            field="host",
        )


def refuse_foreign_forms(host: str | None, origin: str | None, site: str | None) -> None:
    """Refuse a form that another site has sent with the cookies of its user.

    Browsers say where a form comes from: in `Sec-Fetch-Site` (not over plain HTTP, except to this
    machine) and in `Origin`. A program that says neither has no cookies of anybody.

    Args:
        host: the header `Host`.
        origin: the header `Origin`.
        site: the header `Sec-Fetch-Site`.

    Raises:
        Problem: it comes from another site.
    """
    if site is not None:
        good, told, field = site in ("same-origin", "none"), f"{site=}", "sec-fetch-site"
    else:
        good = origin is None or origin.partition("://")[2] == host
        told, field = f"{origin=}, {host=}", "origin"
    if good:
        return
    raise Problem("cross-origin", f"a page of another site sent this form ({told})", field=field)


def _refuse_safelisted(call: Call) -> None:
    """Refuse a body that a page could send without a preflight, which the server never grants."""
    kind = call.content_type
    if kind in (JSON, MSGPACK) or kind.endswith("+json"):
        return
    if call.operation.takes_bytes and kind not in _SAFELISTED:
        return
    raise Problem(
        "unsupported-type" if call.operation.takes_bytes else "malformed",
        f"content-type is {kind or 'missing'!r}; a server without tokens takes {JSON}, so that no "
        f"web page can write to it: send content-type: {JSON} (curl --json)",
        field="content-type",
    )


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
