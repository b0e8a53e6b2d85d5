"""The description of the API: valid, complete and true, and so are clients made of it."""

import asyncio
import importlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, settings
from openapi_spec_validator import validate

from bide.model.errors import Unsupported
from bide.server.app import ServerApp
from bide.server.openapi import Description
from bide.server.operation import Answer, Operation
from bide.server.routes import OPERATIONS
from bide.server.routes.documentation import documentation_of
from bide.server.settings import Settings
from tests.effort import effort, one_in
from tests.system.server.client import Client
from tests.system.server.conftest import Serve, running

EXAMPLES = effort(1, 10)
"""How many requests are made up for each operation, beside those that try its edges."""


def test_the_description_is_valid() -> None:
    validate(Description(OPERATIONS).document)


def test_each_operation_is_told(client: Client) -> None:
    paths = client.get("/openapi.json").json["paths"]
    told = {(path, method.upper()) for path, found in paths.items() for method in found}
    assert told == {(operation.path, operation.method) for operation in OPERATIONS}
    for found in paths.values():
        for operation in found.values():
            assert operation["summary"]
            assert operation["operationId"]


def test_the_page_tells_of_each_operation_and_fetches_nothing(client: Client) -> None:
    page = client.get("/docs")
    text = page.data.decode()
    for operation in OPERATIONS:
        assert f"id='{operation.name}'" in text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert text.count("<script") == 1
    assert "<script src=docs/try.js defer>" in text
    assert not re.search(r"(src|href|url|action|@import)\s*[=(]?\s*['\"]?(https?:)?//", text)


def test_the_page_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    operations = {one.name: one for one in documentation_of(OPERATIONS).operations}

    async def answer(name: str) -> Answer:
        reply: Answer = await operations[name].handle(None)
        return reply

    needed = r"'jinja2', which is not installed: pip install 'bide\[server\]'"
    with pytest.raises(Unsupported, match=needed):
        asyncio.run(answer("docs"))
    assert asyncio.run(answer("openapi")).status == 200


def test_what_receivers_get_is_told(client: Client) -> None:
    hooks = client.get("/openapi.json").json["webhooks"]
    assert set(hooks) == {"message", "ping"}
    text = client.get("/docs").data.decode()
    for name in hooks:
        assert f"id='webhook-{name}'" in text
    assert "webhook-signature" in text


def test_every_problem_is_told(client: Client) -> None:
    text = client.get("/docs").data.decode()
    kind = client.get("/v2").problem["type"]
    assert f"id='{kind.partition('#')[2]}'" in text


class Bounded(requests.Session):
    """Reads the beginning of a stream that has no end, and of all else everything."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        reply = super().send(request, **{**options, "stream": True})
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            reply._content = next(reply.iter_content(65_536))
            reply.close()
        assert reply.content is not None
        return reply


Ask = Callable[[str, str], None]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Provide a function that makes up requests of an operation and checks every answer."""
    # Imported here, by the one process that runs these tests: it takes seconds.
    import schemathesis
    from schemathesis import checks
    from schemathesis.generation.hypothesis import builder
    from schemathesis.specs.openapi import checks as openapi_checks

    holds: list[Any] = [
        checks.not_a_server_error,
        openapi_checks.status_code_conformance,
        openapi_checks.content_type_conformance,
        openapi_checks.response_schema_conformance,
        openapi_checks.response_headers_conformance,
    ]
    api = schemathesis.openapi.from_dict(Description(OPERATIONS).document)
    modes = [builder.HypothesisTestMode.COVERAGE, builder.HypothesisTestMode.FUZZING]
    store = Settings(longest_wait=0.01, store="memory://schemathesis", push=False)
    with running(ServerApp(store)) as port, Bounded() as session:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: Any) -> None:
            url = f"http://127.0.0.1:{port}"
            case.call_and_validate(base_url=url, session=session, checks=holds)

        def ask(method: str, path: str) -> None:
            config = builder.HypothesisTestConfig(project=api.config, modes=modes)
            builder.create_test(operation=api[path][method], test_func=check, config=config)()

        yield ask


@pytest.mark.parametrize(
    "operation",
    one_in(4, sorted(OPERATIONS, key=lambda operation: operation.path)),
    ids=lambda operation: f"{operation.method}-{operation.path}",
)
def test_whatever_is_asked_the_answer_is_as_described(operation: Operation, ask: Ask) -> None:
    ask(operation.method, operation.path)


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


@pytest.mark.full  # generating it takes seconds
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
