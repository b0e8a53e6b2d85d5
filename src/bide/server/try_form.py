"""Forms by which the page of the API sends requests; its script shows and sends them."""

import json
from html import escape
from typing import Any

from bide.server.operation import JSON

__all__ = ["ACCESS", "ANSWER", "form"]

ACCESS = """
<section id=access hidden aria-label=Access>
<label>Token <input id=token type=password autocomplete=off spellcheck=false></label>
<button type=button id=forget>Forget it</button>
<p>Sent with the requests that you make on this page, to this server alone. This tab of the browser
keeps it until it is closed. A server without tokens needs none.</p>
</section>"""
"""Where the token is given."""

ANSWER = """
<template id=answer>
<p><button type=submit>Send</button> <button type=button class=stop disabled>Stop</button></p>
<h3>The same with curl</h3>
<pre class=curl tabindex=0 role=group aria-label="The same with curl"></pre>
<p class=status role=status></p>
<div class=came hidden>
<h3>Headers</h3><pre class=headers tabindex=0 role=group aria-label="Headers of the answer"></pre>
<h3>Body</h3><pre class=body tabindex=0 role=group aria-label="Body of the answer"></pre>
</div>
</template>"""
"""The end of each form: what is sent, and what comes back."""


def form(path: str, method: str, operation: dict[str, Any]) -> str:
    """Return the form of an operation."""
    token = " data-token" if operation["security"] else ""
    parts = [
        f'<form hidden method=dialog data-method="{method}" data-path="{escape(path)}"{token}'
        f' aria-label="Try {escape(operation["operationId"])}"><h3>Try it</h3><div class=fields>',
        *(_field(parameter) for parameter in operation["parameters"]),
    ]
    content = operation.get("requestBody", {}).get("content", {})
    if len(content) > 1:
        parts.append(
            f"<label>content-type <input name=content-type data-in=type value={JSON}></label>"
        )
    parts.append("</div>")
    if content:
        text = json.dumps(content[JSON]["example"], indent=2)
        rows = text.count("\n") + 1
        parts.append(
            f"<label>Body <textarea name=body data-in=body rows={rows} spellcheck=false>"
            f"{escape(text)}</textarea></label>"
        )
    return "".join([*parts, "</form>"])


def _field(parameter: dict[str, Any]) -> str:
    name, where, schema = escape(parameter["name"]), parameter["in"], parameter["schema"]
    needed = " required" if parameter.get("required") else ""
    common = f'name="{name}" data-in={where}{needed}'
    if choices := _choices(schema):
        options = "".join(f"<option>{escape(choice)}" for choice in ["", *choices])
        return f"<label>{name} <select {common}>{options}</select></label>"
    value = escape(str(parameter.get("example", "")))
    hint = escape(str(next(iter(schema.get("examples", ())), "")))
    return (
        f'<label>{name} <input {common} value="{value}" placeholder="{hint}" autocomplete=off'
        " spellcheck=false></label>"
    )


def _choices(schema: dict[str, Any]) -> list[str]:
    """Return the values that a parameter may have, if they are few."""
    if schema.get("type") == "boolean":
        return ["true", "false"]
    kinds = schema.get("anyOf", [schema])
    if not all("enum" in kind for kind in kinds):
        return []
    return [str(value) for kind in kinds for value in kind["enum"]]
