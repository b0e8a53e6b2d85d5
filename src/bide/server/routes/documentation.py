"""The description of the API: for programs, and as a page with forms."""

from collections.abc import Sequence

from bide.model.errors import Unsupported
from bide.server.call import ApiCall
from bide.server.openapi import Description, policy, static
from bide.server.operation import Answer, Operation, Routes

HTML = "text/html; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"


def documentation_of(operations: Sequence[Operation]) -> Routes:
    """Return the operations that describe the given ones, and themselves."""
    route = Routes("service")

    @route("openapi", "GET", "/openapi.json", None, {200: bytes})
    async def openapi(call: ApiCall) -> Answer:
        """Get this description."""
        return Answer(200, description.document)

    @route("docs", "GET", "/docs", None, {200: bytes}, problems=(501,), content_type=HTML)
    async def docs(call: ApiCall) -> Answer:
        """Show this description as a page with forms."""
        try:
            return Answer(200, description.page, {"content-security-policy": policy()}, HTML)
        except ModuleNotFoundError as error:
            raise Unsupported(
                f"the page needs the package {error.name!r}, which is not installed: "
                "pip install 'bide[server]'; /openapi.json has the same description"
            ) from None

    @route("docsScript", "GET", "/docs/try.js", None, {200: bytes}, content_type=SCRIPT)
    async def docs_script(call: ApiCall) -> Answer:
        """Get the script of that page."""
        safe = {"x-content-type-options": "nosniff"}
        return Answer(200, static("try.js").encode(), safe, SCRIPT)

    description = Description((*operations, *route.operations))
    return route
