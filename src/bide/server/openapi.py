"""The OpenAPI 3.1 description, made of the operations and the structs that they use."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from inspect import cleandoc
from typing import Any

import msgspec

from bide.server.examples import BODIES, NAMES
from bide.server.operation import JSON, Operation
from bide.server.problem import KINDS, ProblemDocument
from bide.server.webhooks import WEBHOOKS

_REF = "#/components/schemas/{name}"
_EVERYWHERE = (400, 408, 413, 500, 503, 504)
_WITH_TOKEN = (401, 403, 429)


@cache
def document() -> bytes:
    """Return the description as JSON."""
    return msgspec.json.encode(description())


@cache
def description() -> dict[str, Any]:
    """Return the description."""
    from bide.server.routes import OPERATIONS as operations

    types = [*_types(operations), ProblemDocument]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    components = msgspec.json.decode(msgspec.json.encode(components))  # defaults as JSON has them
    known = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for operation in operations:
        told = _operation(operation, known, components)
        paths.setdefault(operation.path, {})[operation.method.lower()] = told
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bide",
            "version": version("bide"),
            "summary": "A delay queue: messages that bide their time.",
            "description": (
                "Moments are told as Unix milliseconds; they are given as ISO 8601 with a zone or "
                "as Unix seconds. Lengths of time are given as `1h30m` or in seconds. Errors are "
                "problem documents (RFC 9457) that name the cause, the field and the mend."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "."}],
        "tags": [{"name": name} for name in dict.fromkeys(one.tag for one in operations)],
        "paths": paths,
        "webhooks": WEBHOOKS,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `bide token create`; not needed where the server "
                    "asks for none.",
                }
            },
        },
    }


def _types(operations: Iterable[Operation]) -> list[Any]:
    found: list[Any] = []
    for operation in operations:
        for kind in (operation.takes, operation.query, *operation.answers.values()):
            if kind not in (None, bytes) and kind not in found:
                found.append(kind)
    return found


def _operation(
    operation: Operation, known: dict[int, Any], components: dict[str, Any]
) -> dict[str, Any]:
    summary, text = operation.described
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": summary,
        "tags": [operation.tag],
        "parameters": [*_path(operation), *_query(operation, components), *_headers(operation)],
        "responses": _answers(operation, known),
        "security": [] if operation.right is None else [{"token": []}, {}],
    }
    if operation.right:
        text = f"{text} Needs the right `{operation.right}`.".strip()
    if text:
        told["description"] = text
    if operation.takes is not None:
        example = BODIES.get(operation.name, {})
        content: dict[str, Any] = {JSON: {"schema": known[id(operation.takes)], "example": example}}
        if operation.takes_bytes:
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        required = bool(components[operation.takes.__name__].get("required"))
        told["requestBody"] = {"content": content, "required": required}
    return told


def _path(operation: Operation) -> list[dict[str, Any]]:
    pattern = "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"
    schemas = {
        "queue": {"type": "string", "pattern": pattern},
        "name": {"type": "string", "pattern": pattern},
        "id": {"type": "string", "minLength": 1, "maxLength": 512},
        "holder": {"type": "string", "minLength": 1, "maxLength": 512},
    }
    return [
        {
            "name": name, "in": "path", "required": True, "schema": schema,
            "example": NAMES[name],
        }
        for name, schema in schemas.items()
        if f"{{{name}}}" in operation.path
    ]  # fmt: skip


def _query(operation: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = components[operation.query.__name__]
    found = []
    for name, of_one in schema["properties"].items():
        left_out = ("default", "description")
        told = {key: value for key, value in of_one.items() if key not in left_out}
        if "anyOf" in told:  # what is left out of a query is not null
            kinds = [kind for kind in told["anyOf"] if kind != {"type": "null"}]
            told = kinds[0] if len(kinds) == 1 else {**told, "anyOf": kinds}
        parameter = {"name": name, "in": "query", "schema": told}
        if name in schema.get("required", ()):
            parameter["required"] = True
        if "description" in of_one:
            parameter["description"] = of_one["description"]
        found.append(parameter)
    return found


def _headers(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
        for name, text in operation.headers.items()
    ]


def _answers(operation: Operation, known: dict[int, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, kind in operation.answers.items():
        told: dict[str, Any] = {"description": _words(kind, status)}
        if kind is bytes:
            told["content"] = {operation.kind.partition(";")[0]: {"schema": {}}}
        elif kind is not None:
            told["content"] = {operation.kind: {"schema": known[id(kind)]}}
        answers[str(status)] = told
    problems = {*_EVERYWHERE, *operation.problems}
    if operation.right is not None:
        problems.update(_WITH_TOKEN)
    for status in sorted(problems - set(operation.answers)):
        titles = dict.fromkeys(kind.title for kind in KINDS.values() if kind.status == status)
        answers[str(status)] = {
            "description": "; or ".join(titles),
            "content": {"application/problem+json": {"schema": known[id(ProblemDocument)]}},
        }
    return answers


def _words(kind: Any, status: int) -> str:
    if kind in (None, bytes):
        return "Not changed." if status == 304 else "What was asked for."
    text: str = cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return text
