"""The description of the API as a page, with forms to try it; nothing is fetched from elsewhere."""

import hashlib
import json
from base64 import b64encode
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from bide.server.problem import KINDS
from bide.server.try_form import ACCESS, ANSWER, form

__all__ = ["POLICY", "page", "script"]

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { background: Canvas; color: CanvasText; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
a { color: #2743b8 } @media (prefers-color-scheme: dark) { a { color: #9db4ff } }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886 }
details { border: 1px solid #8886; border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } code, pre { font: .9em/1.4 ui-monospace, monospace }
pre { overflow-x: auto; background: #8881; padding: .6rem; border-radius: .4rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0 }
.method { display: inline-block; min-width: 4rem; font-weight: 700 }
form, #access { border-top: 1px solid #8886; margin-top: .8rem; padding-top: .2rem }
form h3 { font-size: 1em; margin: .8rem 0 .3rem } form pre { max-height: 24rem }
form pre.curl { user-select: all }
label { display: block; font: .9em/1.4 ui-monospace, monospace } label > * { display: block }
input, select, textarea, button { font: .9em/1.4 ui-monospace, monospace; padding: .3rem .5rem }
input, select, textarea { box-sizing: border-box; width: 100%; margin: .1rem 0 .5rem }
.fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: 0 1rem }
#access label { max-width: 40rem } .status:empty { display: none } .status { font-weight: 700 }
"""

POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; "
    f"style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser may do with the page: show it, and send requests to this server. No other page may
show it within itself, and have its visitors press its buttons."""


@cache
def script() -> bytes:
    """Return the script that sends the forms."""
    return files("bide.server").joinpath("static", "try.js").read_bytes()


def page(description: dict[str, Any]) -> bytes:
    """Return the description as HTML."""
    info = description["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        "<script src=docs/try.js defer></script><main>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['summary'])} {_text(info['description'])}</p>",
        "<p>The same for programs: <a href=openapi.json>openapi.json</a>.</p>",
        ACCESS,
        ANSWER,
    ]
    for tag in description["tags"]:
        parts.append(f"<h2>{escape(tag['name'].capitalize())}</h2>")
        for path, methods in description["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag["name"]]:
                    parts.append(_operation(path, method.upper(), operation))
    parts.append("<h2>What receivers get</h2>")
    for name, methods in description["webhooks"].items():
        for method, operation in methods.items():
            parts.append(_operation(name, method.upper(), operation, f"webhook-{name}"))
    parts.append("<h2>What is sent</h2>")
    for name, schema in description["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(
            f"<details id='schema-{name}'><summary>{escape(name)}</summary>"
            f"<pre tabindex=0>{text}</pre></details>"
        )
    parts.append("<h2>Problems</h2><table><tr><th>Status<th>Name<th>Title")
    parts += [
        f"<tr id='problem-{kind.name}'><td>{kind.status}<td><code>{kind.name}</code>"
        f"<td>{escape(kind.title)}"
        for kind in sorted(KINDS.values(), key=lambda kind: kind.status)
    ]
    parts.append("</table></main></html>")
    return "\n".join(parts).encode()


def _operation(path: str, method: str, operation: dict[str, Any], id: str = "") -> str:
    rows = []
    for parameter in operation["parameters"]:
        kind = _schema(parameter["schema"])
        text = _text(parameter.get("description", ""))
        where = parameter["in"]
        rows.append(
            f"<tr><td><code>{escape(parameter['name'])}</code><td>{where}<td>{kind}<td>{text}"
        )
    table = f"<table><tr><th>Name<th>In<th>Form<th>{''.join(rows)}</table>" if rows else ""
    taken = operation.get("requestBody", {}).get("content", {})
    body = "".join(f"<p>Takes {escape(k)}: {_schema(v['schema'])}" for k, v in taken.items())
    answers = "".join(
        f"<tr><td>{status}<td>{_text(answer['description'])}<td>"
        + ", ".join(_schema(content["schema"]) for content in answer.get("content", {}).values())
        for status, answer in operation["responses"].items()
    )
    anchor = id or operation["operationId"]
    tried = "" if id else form(path, method, operation)
    return (
        f"<details id='{anchor}'><summary><span class=method>{method}</span> "
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<p>{_text(operation.get('description', ''))}</p>{table}{body}"
        f"<table><tr><th>Status<th>When<th>Answer{answers}</table>{tried}</details>"
    )


def _schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href='#schema-{name}'>{escape(name)}</a>"
    if "anyOf" in schema:
        return " or ".join(_schema(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    return escape(str(schema.get("format", schema.get("type", "anything"))))


def _text(text: str) -> str:
    """Return words with what stands between back quotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(parts))
