"""The description of the API as a page, with forms to try it; nothing is fetched from elsewhere."""

import hashlib
import json
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup, escape

from bide.server.openapi import description
from bide.server.operation import JSON
from bide.server.problem import KINDS


@cache
def page() -> bytes:
    """Return the description as HTML."""
    environment = Environment(
        loader=PackageLoader("bide.server"), autoescape=True, undefined=ChainableUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"choices": _choices, "indented": _indented, "words": _words}
    template = environment.get_template("docs.html")
    told = template.render(description(), json=JSON, problems=KINDS.values(), style=_style())
    return told.encode()


def policy() -> str:
    """Return what a browser may do with the page: show it, and send requests to this server.

    No other page may show it within itself, and have its visitors press its buttons.
    """
    style = b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return (
        "default-src 'none'; script-src 'self'; connect-src 'self'; "
        f"style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def script() -> bytes:
    """Return the script that sends the forms."""
    return files("bide.server").joinpath("static", "try.js").read_bytes()


@cache
def _style() -> Markup:
    return Markup(files("bide.server").joinpath("static", "docs.css").read_text("utf-8"))


def _words(text: str) -> Markup:
    """Return words with what stands between back quotes as code."""
    parts = escape(text or "").split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts)
    )


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _choices(schema: dict[str, Any]) -> list[str]:
    """Return the values that a parameter may have, if they are few."""
    if schema.get("type") == "boolean":
        return ["true", "false"]
    kinds = schema.get("anyOf", [schema])
    if not all("enum" in kind for kind in kinds):
        return []
    return [str(value) for kind in kinds for value in kind["enum"]]
