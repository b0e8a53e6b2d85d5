"""The OpenAPI 3.1 description, made from the operations and the structs that they use.

`static/openapi.toml` has all other texts. The page at /docs shows the description, with forms to
try the operations; it loads nothing from other servers.
"""

import hashlib
import json
import tomllib
from base64 import b64encode
from collections.abc import Sequence
from functools import cache, cached_property, partial
from importlib.resources import files
from inspect import cleandoc
from typing import Any, get_args

import msgspec

from bide.model.commands import Command
from bide.server.operation import ANY, JSON, Operation
from bide.server.problem import KINDS, ProblemDocument

_EVERYWHERE = (400, 408, 413, 500, 503, 504)
_WITH_TOKEN = (401, 403, 429)


@cache
def static(name: str) -> str:
    """Return the text of a file that comes with the server."""
    return files("bide.server").joinpath("static", name).read_text("utf-8")


@cache
def texts() -> dict[str, Any]:
    """Return all texts of the description that are not docstrings."""
    return tomllib.loads(static("openapi.toml"))


class Description:
    """The description of operations.

    Args:
        operations: in the order of the description.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        from importlib.metadata import version

        operations = self._operations
        types: list[Any] = []
        for operation in operations:
            types += [operation.takes, operation.query, *operation.answers.values()]
        types = [*dict.fromkeys(each for each in types if each not in (None, bytes))]
        schemas, components = _schemas([*types, ProblemDocument])
        paths: dict[str, Any] = {}
        for operation in operations:
            methods = paths.setdefault(operation.path, {})
            methods[operation.method.lower()] = _operation(operation, schemas, components)
        tags = dict.fromkeys(operation.tag for operation in operations)
        webhooks: dict[str, Any] = {}
        for name, webhook in texts()["webhooks"].items():
            parameters = texts()["signed"] + webhook["parameters"]
            webhooks[name] = {"post": webhook | {"parameters": parameters}}
        document: dict[str, Any] = texts()["document"]
        return document | {
            "info": document["info"] | {"version": version("bide")},
            "tags": [{"name": tag} for tag in tags],
            "paths": paths,
            "webhooks": webhooks,
            "components": document["components"] | {"schemas": dict(sorted(components.items()))},
        }

    @cached_property
    def page(self) -> bytes:
        """The document as HTML."""
        from jinja2 import ChainableUndefined, Environment, PackageLoader
        from markupsafe import Markup, escape

        def words(text: str) -> Markup:
            """Return a text as HTML; text between back quotes becomes code."""
            parts = escape(text or "").split("`")
            code = Markup("<code>{}</code>")
            return Markup().join(
                code.format(part) if number % 2 else part for number, part in enumerate(parts)
            )

        environment = Environment(
            loader=PackageLoader("bide.server"),
            autoescape=True,
            undefined=ChainableUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        indented = partial(json.dumps, indent=2, ensure_ascii=False)
        environment.filters |= {"choices": _allowed_values, "indented": indented, "words": words}
        template = environment.get_template("docs.html")
        style = Markup(static("docs.css"))
        text = template.render(self.document, json=JSON, problems=KINDS.values(), style=style)
        return text.encode()


def _schemas(types: list[Any]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """Return the schemas of types, and the named ones that they refer to.

    Generators of clients name an inline enumeration after its schema and property, or after its
    operation and parameter. So a command of a batch is not named like an operation: both `put` and
    `Put` have an `on_conflict`, with other values.
    """
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(types, ref_template=template)
    text = msgspec.json.encode([schemas, components]).decode()  # defaults as JSON has them
    names = [command.__name__ for command in get_args(Command)]
    for name in names:
        text = text.replace(
            f'"{template.format(name=name)}"', f'"{template.format(name=_command_schema(name))}"'
        )
    schemas, components = msgspec.json.decode(text)
    for name in names:
        components[_command_schema(name)] = components.pop(name) | {"title": _command_schema(name)}
    for component in components.values():
        for field in component.get("properties", {}).values():
            _describe_default(field)
    return dict(zip(types, schemas, strict=True)), components


def _command_schema(name: str) -> str:
    """Return the name of the schema of a command."""
    return f"{name.removesuffix('Command')}Command"


def _describe_default(field: dict[str, Any]) -> None:
    """Move the default of a field into its description.

    Generators take a field that has a default for one that is always there: openapi-typescript
    requires it in requests.
    """
    default = field.pop("default", None)
    if default not in (None, "", [], {}):  # an empty default says nothing
        sentence = f"Default: `{json.dumps(default)}`."
        field["description"] = f"{field.get('description', '')} {sentence}".strip()


def _operation(
    operation: Operation, schemas: dict[Any, Any], components: dict[str, Any]
) -> dict[str, Any]:
    """Return the description of an operation.

    Args:
        operation: the operation.
        schemas: the schemas by type, see `_schemas`.
        components: the schemas by name.
    """
    summary, _, text = cleandoc(operation.handle.__doc__ or "").partition("\n\n")
    text = text.replace("\n", " ")
    if operation.right:
        text = f"{text} Needs the right `{operation.right}`.".strip()
    in_path = [
        {"name": name, "in": "path", "required": True} | description
        for name, description in texts()["names"].items()
        if f"{{{name}}}" in operation.path
    ]
    headers = [
        {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
        for name, text in operation.headers.items()
    ]
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": summary.rstrip("."),
        "description": text,
        "tags": [operation.tag],
        "parameters": [*in_path, *_query(operation, components), *headers],
        "responses": _answers(operation, schemas),
        "security": [] if operation.right is None else [{"token": []}, {}],
    }
    if operation.takes is not None:
        example = texts()["bodies"].get(operation.name, {})
        content: dict[str, Any] = {JSON: {"schema": schemas[operation.takes], "example": example}}
        if operation.takes_bytes:
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        required = bool(components[operation.takes.__name__].get("required"))
        described["requestBody"] = {"content": content, "required": required}
    return described


def _query(operation: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the descriptions of an operation's parameters in the query."""
    if operation.query is None:
        return []
    schema = components[operation.query.__name__]
    parameters = []
    for name, property_schema in schema["properties"].items():
        value_schema = dict(property_schema)
        if "anyOf" in value_schema:  # a parameter that is left out is not null
            alternatives = value_schema["anyOf"]
            value_schema["anyOf"] = [
                alternative for alternative in alternatives if alternative != {"type": "null"}
            ]
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in schema.get("required", ()),
                "description": value_schema.get("description", ""),
                "schema": value_schema,
            }
        )
    return parameters


def _answers(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    """Return the descriptions of an operation's answers and problems, by status."""
    answers: dict[str, Any] = {}
    for status, type_of_content in operation.answers.items():
        text = "Not changed." if status == 304 else "The content."
        if type_of_content in schemas:
            first_paragraph = cleandoc(type_of_content.__doc__ or "").partition("\n\n")[0]
            text = first_paragraph.replace("\n", " ")
        answer: dict[str, Any] = {"description": text}
        answers[str(status)] = answer
        if type_of_content is None:
            continue
        if operation.content_type == ANY:
            # Generators of clients do not know "*/*": they take one of the other two.
            binary = {"schema": {"type": "string", "format": "binary"}}
            answer["content"] = {
                JSON: {"schema": {}},
                "application/octet-stream": binary,
                ANY: binary,
            }
        else:
            content_type = operation.content_type.partition(";")[0]  # without its charset
            answer["content"] = {content_type: {"schema": schemas.get(type_of_content, {})}}
    problems = {*_EVERYWHERE, *operation.problems}
    if operation.right is not None:
        problems.update(_WITH_TOKEN)
    for status in sorted(problems - set(operation.answers)):
        titles = dict.fromkeys(
            problem.title for problem in KINDS.values() if problem.status == status
        )
        answers[str(status)] = {
            "description": "; or ".join(titles),
            "content": {"application/problem+json": {"schema": schemas[ProblemDocument]}},
        }
    return answers


def policy() -> str:
    """Return the content security policy of the page: it may send requests to this server only.

    No other page may embed it, to make its visitors press its buttons.
    """
    style = b64encode(hashlib.sha256(static("docs.css").encode()).digest()).decode()
    return (
        "default-src 'none'; script-src 'self'; connect-src 'self'; "
        f"style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _allowed_values(schema: dict[str, Any]) -> list[str]:
    """Return the allowed values of a parameter that is a boolean or an enumeration."""
    if schema.get("type") == "boolean":
        return ["true", "false"]
    kinds = schema.get("anyOf", [schema])
    if not all("enum" in kind for kind in kinds):
        return []
    return [str(value) for kind in kinds for value in kind["enum"]]
