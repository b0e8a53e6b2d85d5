"""Clients that generators make of /openapi.json are whole and right."""

import importlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bide.server.openapi import Description
from bide.server.routes import OPERATIONS
from tests.server.client import Client
from tests.server.conftest import Serve

GENERATE = "from openapi_python_client.cli import app; app()"
OPTIONS = ["--fail-on-warning", "--meta", "none", "--config", "config.yml"]
OPTIONS += ["--output-path", "generated_client"]


def camel(*parts: str) -> str:
    words = [word for part in parts for word in part.replace("-", "_").split("_")]
    return "".join(word[:1].upper() + word[1:] for word in words)


def fields(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each field of a schema: the schema's name, its own name, and what it may be."""
    for name, schema in document["components"]["schemas"].items():
        for field, kind in schema.get("properties", {}).items():
            yield name, field, kind


def test_no_two_enumerations_get_one_name() -> None:
    """A generator names them after operation and parameter, or after schema and field."""
    document = Description(OPERATIONS).document
    named = defaultdict(set)
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation["parameters"]:
                if "enum" in parameter["schema"]:
                    name = camel(operation["operationId"], parameter["name"])
                    named[name].add(tuple(parameter["schema"]["enum"]))
    for schema, field, kind in fields(document):
        if "enum" in kind:
            named[camel(schema, field)].add(tuple(kind["enum"]))
    assert named["PutOnConflict"] == {("keep", "raise", "replace")}
    assert [name for name, values in named.items() if len(values) > 1] == []


def test_no_optional_field_has_a_default_that_makes_it_mandatory() -> None:
    """openapi-typescript requires a field that has a default: it expects it in each answer."""
    document = Description(OPERATIONS).document
    assert [(name, field) for name, field, kind in fields(document) if "default" in kind] == []
    schemas = document["components"]["schemas"]
    assert schemas["Deliver"]["properties"]["lease"]["description"].endswith("Default: `30`.")
    assert "lease" not in schemas["Deliver"].get("required", ())


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Generate a client for Python; return the name of its package."""
    (tmp_path / "openapi.json").write_text(json.dumps(Description(OPERATIONS).document))
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    subprocess.run(
        [sys.executable, "-c", GENERATE, "generate", "--path", "openapi.json", *OPTIONS],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "generated_client"


def test_a_generated_client_for_python_puts_and_claims(generated: str, serve: Serve) -> None:
    server: Client = serve()
    modules = {path.stem for path in Path(sys.path[0], generated, "api").rglob("*.py")}
    names = ["".join("_" + c.lower() if c.isupper() else c for c in o.name) for o in OPERATIONS]
    assert set(names) <= modules

    models = importlib.import_module(f"{generated}.models")
    with importlib.import_module(f"{generated}.client").Client(base_url=server.url) as client:

        def call(operation: str, **arguments: Any) -> Any:
            module = importlib.import_module(f"{generated}.api.{operation}")
            return module.sync(client=client, queue="orders", **arguments)

        body = models.Given.from_dict({"body": {"order": 42}, "id": "order-42"})
        outcome = call("messages.put", body=body, on_conflict=models.PutOnConflict.RAISE)
        assert (outcome.done, outcome.id) == (True, "order-42")
        again = call("messages.put", body=body, on_conflict=models.PutOnConflict.RAISE)
        assert (again.status, again.error) == (409, "AlreadyExists")
        many = models.PutMany(messages=[models.Given.from_dict({"body": 1, "id": "b"})])
        assert [each.done for each in call("messages.put_many", body=many).outcomes] == [True]
        claimed = call("deliveries.claim", body=models.Deliver(count=2))
        assert sorted(message.id for message in claimed.messages) == ["b", "order-42"]
