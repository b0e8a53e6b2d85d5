"""Health, metrics, usage and the description of the API."""

import msgspec

from bide.model.errors import Unsupported
from bide.server.call import Call
from bide.server.metrics import KIND, exposition
from bide.server.operation import Answer, Routes
from bide.server.quotas import Usage

route = Routes("service")


class Health(msgspec.Struct, omit_defaults=True):
    """How the service is."""

    status: str
    reason: str | None = None


@route("healthz", "GET", "/healthz", None)
async def healthz(call: Call) -> Health:
    """Whether the process answers."""
    return Health("ok")


@route("readyz", "GET", "/readyz", None, {200: Health, 503: Health})
async def readyz(call: Call) -> Answer:
    """Whether the store answers as well."""
    reason = await call.service.ready()
    return (
        Answer(200, Health("ready")) if reason is None else Answer(503, Health("not ready", reason))
    )


@route("metrics", "GET", "/metrics", "read", {200: bytes}, kind=KIND)
async def metrics(call: Call) -> Answer:
    """Figures for Prometheus.

    Those of the token's namespace, from all processes of the server together.
    """
    with call.counted(call.service.slow_calls):
        async with call.service.scrapes.one():
            return Answer(200, await exposition(call.service, call.caller), kind=KIND)


@route("usage", "GET", "/v1/usage", "read")
async def usage(call: Call) -> Usage:
    """How much the namespace uses of its quotas."""
    with call.counted(call.service.slow_calls):
        return await call.service.quotas.usage(call.caller)


@route("openapi", "GET", "/openapi.json", None)
async def openapi(call: Call) -> bytes:
    """This description."""
    from bide.server.openapi import document

    return document()


@route("docs", "GET", "/docs", None, {200: bytes}, problems=(501,), kind="text/html; charset=utf-8")
async def docs(call: Call) -> Answer:
    """This description, to be read and tried."""
    try:
        from bide.server.page import page, policy
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the page needs the package {error.name!r}, which is not installed: "
            "pip install 'bide[server]'; /openapi.json says the same"
        ) from None
    return Answer(200, page(), {"content-security-policy": policy()}, "text/html; charset=utf-8")


@route(
    "docsScript", "GET", "/docs/try.js", None, {200: bytes}, kind="text/javascript; charset=utf-8",
)  # fmt: skip
async def docs_script(call: Call) -> Answer:
    """The script of that page."""
    from bide.server.page import script

    kind = "text/javascript; charset=utf-8"
    return Answer(200, script(), {"x-content-type-options": "nosniff"}, kind)
