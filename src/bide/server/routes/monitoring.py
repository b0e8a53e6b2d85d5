"""Health, metrics, usage and the description of the API."""

import msgspec

from bide.model.errors import Unsupported
from bide.server.metrics import KIND, exposition
from bide.server.operation import Answer, Call, Operation
from bide.server.quotas import Usage


class Health(msgspec.Struct, omit_defaults=True):
    """How the service is."""

    status: str
    reason: str | None = None


async def healthz(call: Call) -> Answer:
    """Whether the process answers."""
    return Answer(200, Health("ok"))


async def readyz(call: Call) -> Answer:
    """Whether the store answers as well."""
    reason = await call.service.ready()
    return (
        Answer(200, Health("ready")) if reason is None else Answer(503, Health("not ready", reason))
    )


async def metrics(call: Call) -> Answer:
    """Figures for Prometheus.

    Those of the token's namespace, from all processes of the server together.
    """
    with call.counted(call.service.slow_calls):
        async with call.service.scrapes.one():
            return Answer(200, await exposition(call.service, call.caller), kind=KIND)


async def usage(call: Call) -> Answer:
    """How much the namespace uses of its quotas."""
    with call.counted(call.service.slow_calls):
        return Answer(200, await call.service.quotas.usage(call.caller))


async def openapi(call: Call) -> Answer:
    """This description."""
    from bide.server.openapi import document

    return Answer(200, document())


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


async def docs_script(call: Call) -> Answer:
    """The script of that page."""
    from bide.server.page import script

    kind = "text/javascript; charset=utf-8"
    return Answer(200, script(), {"x-content-type-options": "nosniff"}, kind)


MONITORING = (
    Operation("healthz", "GET", "/healthz", None, healthz, {200: Health}),
    Operation("readyz", "GET", "/readyz", None, readyz, {200: Health, 503: Health}),
    Operation("metrics", "GET", "/metrics", "read", metrics, {200: bytes}, kind=KIND),
    Operation("usage", "GET", "/v1/usage", "read", usage, {200: Usage}),
    Operation("openapi", "GET", "/openapi.json", None, openapi, {200: bytes}),
    Operation(
        "docs", "GET", "/docs", None, docs, {200: bytes}, problems=(501,),
        kind="text/html; charset=utf-8",
    ),
    Operation(
        "docsScript", "GET", "/docs/try.js", None, docs_script, {200: bytes},
        kind="text/javascript; charset=utf-8",
    ),
)  # fmt: skip
