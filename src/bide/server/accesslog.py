"""The access log: one line per request. Never its query, body or token, which may be secret."""

import logging

from bide.model.limits import MAX_LOGGED_METHOD, MAX_LOGGED_PATH

_log = logging.getLogger("bide.access")


def log_request(
    method: str,
    path: str,
    status: int,
    took: float,
    operation: str,
    client: str,
    namespace: str | None,
    token: str | None,
) -> None:
    """Log a request.

    Args:
        method: of the request.
        path: of the request.
        status: of the answer.
        took: seconds from the request to its answer.
        operation: the name of what was done.
        client: the client's address.
        namespace: whose queues it was about.
        token: the id of the token.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    method, path = _bounded(method, MAX_LOGGED_METHOD), _bounded(path, MAX_LOGGED_PATH)
    told = client or "-", namespace or "-", token or "-"
    _log.info(
        "%s %s %d %.1f ms client=%s namespace=%s token=%s", method, path, status, took * 1000,
        *told,
        extra={
            "method": method, "path": path, "status": status, "duration": round(took, 6),
            "operation": operation, "client": client, "namespace": namespace or "",
            "token": token or "",
        },
    )  # fmt: skip


def _bounded(text: str, most: int) -> str:
    """Return at most `most` characters of a text, with those escaped that a terminal obeys.

    Example:
        >>> _bounded("/v1/\\x1b[2J", 200), _bounded("/v1/queues", 6)
        ('/v1/\\\\x1b[2J', '/v1/q…')
    """
    if not text.isprintable():
        text = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text[:most])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def log_refused(client: str, status: int, detail: str) -> None:
    """Log a request that could not be read as HTTP, or a connection without room."""
    log_request("-", f"({detail})", status, 0.0, "", client, None, None)
