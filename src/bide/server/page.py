"""The description of the API as a page: plain HTML, nothing fetched from elsewhere."""

import json
from html import escape
from typing import Any

from bide.server.problem import KINDS

__all__ = ["POLICY", "page"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser may do with the page: show it."""

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886 }
details { border: 1px solid #8886; border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } code, pre { font: .9em/1.4 ui-monospace, monospace }
pre { overflow-x: auto; background: #8881; padding: .6rem; border-radius: .4rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0 }
.method { display: inline-block; min-width: 4rem; font-weight: 700 }
"""


def page(description: dict[str, Any]) -> bytes:
    """Return the description as HTML."""
    info = description["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['summary'])} {_text(info['description'])}</p>",
        "<p>The same for programs: <a href=/openapi.json>openapi.json</a>.</p>",
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
            f"<details id='schema-{name}'><summary>{escape(name)}</summary><pre>{text}</pre>"
            "</details>"
        )
    parts.append("<h2>Problems</h2><table><tr><th>Status<th>Name<th>Title")
    parts += [
        f"<tr id='problem-{kind.name}'><td>{kind.status}<td><code>{kind.name}</code>"
        f"<td>{escape(kind.title)}"
        for kind in sorted(KINDS.values(), key=lambda kind: kind.status)
    ]
    parts.append("</table></html>")
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
    return (
        f"<details id='{anchor}'><summary><span class=method>{method}</span> "
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<p>{_text(operation.get('description', ''))}</p>{table}{body}"
        f"<table><tr><th>Status<th>When<th>Answer{answers}</table></details>"
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
