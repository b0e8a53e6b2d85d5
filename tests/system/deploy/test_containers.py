"""Container files, compose and Kubernetes: what they say is valid, exists, and fits together."""

import importlib.util
import json
import re
import shlex
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from bide.server.settings import PORT, Settings
from bide.worker.process.supervisor import LEEWAY
from tests.docs.test_pages import ROOT
from tests.system.deploy.images import command, health_check, instructions
from tests.system.deploy.test_deploy import check_options, command_of

DEPLOY = ROOT / "deploy"
SHOP = DEPLOY / "shop/Containerfile"
SERVER = DEPLOY / "Containerfile"
COMPOSE = DEPLOY / "shop/compose.yaml"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
WORKFLOW = ROOT / ".github/workflows/publish.yml"

KUBERNETES = ("1.33", "1.37")
"""Versions whose schemas the manifests are checked with."""


def documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file."""
    return list(YAML(typ="safe", pure=True).load_all(path.read_text()))


def of_kind(kind: str) -> list[Any]:
    """Return the Kubernetes objects of a kind, of all manifests."""
    return [each for path in MANIFESTS for each in documents(path) if each["kind"] == kind]


def known_schema(name: str) -> Any:
    """Return a schema that check-jsonschema brings along."""
    folder = files("check_jsonschema") / "builtin_schemas/vendor"
    return json.loads((folder / f"{name}.json").read_text())


def check_schema(document: Any, name: str) -> None:
    schema = known_schema(name)
    jsonschema.validators.validator_for(schema)(schema).validate(document)


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)(s|m)", text)
    assert match is not None, text
    return int(match[1]) * {"s": 1, "m": 60}[match[2]]


def grace_of(words: list[str]) -> float:
    """Return the grace time of a command of bide; that of the server is its default."""
    return seconds(words[words.index("--grace") + 1]) if "--grace" in words else Settings().grace


def check_command(words: list[str]) -> None:
    """Look whether a command of bide, with its options, is there."""
    assert words[0] == "bide"
    check_options(words[1:])


def port_of(words: list[str], option: str) -> int:
    return int(words[words.index(option) + 1].rpartition(":")[2])


# The container files.


@pytest.mark.parametrize("path", [SHOP, SERVER], ids=["shop", "server"])
def test_an_image_has_a_user_a_health_check_and_a_signal(path: Path) -> None:
    told = dict(instructions(path))
    assert told["USER"].isdigit()  # Kubernetes cannot tell whether a name is root's
    assert told["USER"] != "0"
    assert f"--uid {told['USER']}" in " ".join(
        text for name, text in instructions(path) if name == "RUN"
    )
    assert told["STOPSIGNAL"] == "SIGTERM"
    assert health_check(path)[:2] == ["python", "-c"]
    compile(health_check(path)[2], "health", "exec")
    check_command(command(path))
    order = [name for name, _ in instructions(path)]
    assert order.index("USER") > max(at for at, name in enumerate(order) if name == "RUN")


def test_the_worker_is_asked_at_the_port_where_it_answers() -> None:
    words = command(SHOP)
    port = port_of(words, "--health-port")
    assert f"127.0.0.1:{port}" in health_check(SHOP)[2]
    exposed = dict(instructions(SHOP))["EXPOSE"].split()
    assert exposed == [str(port), str(port_of(words, "--metrics"))]
    stop_after = re.search(r"--stop-timeout (\d+)", SHOP.read_text())
    assert stop_after is not None
    assert int(stop_after[1]) > grace_of(words) + LEEWAY


def test_the_server_may_be_stopped_in_time() -> None:
    stop_after = re.search(r"--stop-timeout (\d+)", SERVER.read_text())
    assert stop_after is not None
    assert int(stop_after[1]) > Settings().grace + LEEWAY


def test_the_shop_has_what_it_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = (SHOP.parent / "requirements.txt").read_text()
    own = re.search(r"bide\[(.*?)\]", told)
    assert own is not None
    assert set(own[1].split(",")) <= set(extras["optional-dependencies"])
    words = command(SHOP)
    module, _, name = words[words.index("worker") + 1].partition(":")
    source = (SHOP.parent / f"{module}.py").read_text()
    assert re.search(rf"^{name} = bide.App\(", source, re.MULTILINE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_shop_places_and_pays_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    monkeypatch.setenv("BIDE_URL", f"sqlite:///{tmp_path}/bide.db")
    spec = importlib.util.spec_from_file_location("shop_of_deploy", SHOP.parent / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shop)
    with TestClient(shop.web) as client:
        assert client.put("/orders/42").json() == {"state": "delayed"}
        assert client.post("/orders/42/paid").json() == {"in_time": True}
        assert client.post("/orders/42/paid").json() == {"in_time": False}
        assert client.get("/health").status_code == 200


# Compose.


def services() -> dict[str, Any]:
    [composed] = documents(COMPOSE)
    found: dict[str, Any] = composed["services"]
    return found


def test_compose_is_valid() -> None:
    [composed] = documents(COMPOSE)
    check_schema(composed, "compose-spec")
    with pytest.raises(jsonschema.ValidationError):
        check_schema({**composed, "services": {"db": {"imaje": "postgres"}}}, "compose-spec")


def test_all_parts_are_composed_and_have_one_store() -> None:
    assert services().keys() == {"db", "worker", "app", "server"}
    database = services()["db"]["environment"]
    for name in ("worker", "app", "server"):
        url = services()[name]["environment"]["BIDE_URL"]
        assert url.startswith(f"postgresql://{database['POSTGRES_USER']}:${{DB_PASSWORD")
        assert url.endswith(f"@db/{database['POSTGRES_USER']}")
        assert "depends_on" not in services()[name]


def test_what_is_composed_runs_commands_that_exist_and_is_stopped_in_time() -> None:
    server = [*json.loads(dict(instructions(SERVER))["ENTRYPOINT"])]
    server += services()["server"]["command"]
    for words in (server, command(SHOP)):
        check_command(words)
    for name, words in (("server", server), ("worker", command(SHOP))):
        assert seconds(services()[name]["stop_grace_period"]) > grace_of(words) + LEEWAY
    app = services()["app"]
    grace = app["command"][app["command"].index("--timeout-graceful-shutdown") + 1]
    assert seconds(app["stop_grace_period"]) > int(grace)
    assert "/health" in app["healthcheck"]["test"][-1]
    port = app["command"][app["command"].index("--port") + 1]
    assert f"127.0.0.1:{port}/" in app["healthcheck"]["test"][-1]
    assert app["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert services()["server"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    build = services()["server"]["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == SERVER


def test_the_first_lines_of_compose_name_services_and_commands() -> None:
    told = COMPOSE.read_text()
    [words] = [
        shlex.split(line.partition(" exec ")[2])
        for line in told.splitlines()
        if line.startswith("#") and " exec " in line
    ]
    assert words[0] in services()
    check_command(words[1:])


# Kubernetes.


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_valid(path: Path, version: str) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_manifest_with_a_wrong_field_is_not_valid() -> None:
    [deployment, *_] = of_kind("Deployment")
    deployment["spec"]["template"]["spec"]["terminationGraceSeconds"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)


def container_of(deployment: Any) -> Any:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return container


def words_of(container: Any) -> list[str]:
    """Return the words that a container starts."""
    if "command" in container:
        words: list[str] = container["command"]
        return words
    return [*json.loads(dict(instructions(SERVER))["ENTRYPOINT"]), *container["args"]]


@pytest.mark.parametrize("deployment", of_kind("Deployment"), ids=lambda each: each["kind"])
def test_a_pod_is_probed_where_it_answers_and_stopped_in_time(deployment: Any) -> None:
    container = container_of(deployment)
    words = words_of(container)
    check_command(words)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probes = {
        kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    }
    if "worker" in words:
        assert ports == {
            "health": port_of(words, "--health-port"),
            "metrics": port_of(words, "--metrics"),
        }
        assert {probe["port"] for probe in probes.values()} == {"health"}
        assert {kind: probe["path"] for kind, probe in probes.items()} == {
            "startup": "/",
            "liveness": "/live",
            "readiness": "/",
        }
    else:
        assert ports == {"http": PORT}
        assert {kind: probe["path"] for kind, probe in probes.items()} == {
            "startup": "/healthz",
            "liveness": "/healthz",
            "readiness": "/readyz",
        }
    pod = deployment["spec"]["template"]["spec"]
    before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod["terminationGracePeriodSeconds"] >= before + grace_of(words) + LEEWAY + 5
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600  # its store may be late


@pytest.mark.parametrize("deployment", of_kind("Deployment"), ids=lambda each: each["kind"])
def test_a_pod_is_confined(deployment: Any) -> None:
    pod = deployment["spec"]["template"]["spec"]
    container = container_of(deployment)
    path = SHOP if "worker" in words_of(container) else SERVER
    assert str(pod["securityContext"]["runAsUser"]) == dict(instructions(path))["USER"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "BIDE_URL" not in str(container)  # it has a password: it comes from a secret
    [secret] = container["envFrom"]
    [manifest] = [path for path in MANIFESTS if deployment in documents(path)]
    name = secret["secretRef"]["name"]
    assert f"create secret generic {name} --from-literal=BIDE_URL=" in manifest.read_text()


def test_selectors_choose_the_pods() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind("Deployment")]
    chosen = [each["spec"]["selector"]["matchLabels"] for each in of_kind("Deployment")]
    budgets = [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget")]
    assert labels == chosen == budgets
    [service] = of_kind("Service")
    assert service["spec"]["selector"] in labels
    assert [port["port"] for port in service["spec"]["ports"]] == [PORT]


def test_a_budget_lets_nodes_be_drained() -> None:
    for budget, deployment in zip(
        of_kind("PodDisruptionBudget"), of_kind("Deployment"), strict=True
    ):
        assert 0 < budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]


def test_kubernetes_sets_no_variable_that_the_server_reads() -> None:
    """A service named bide gives pods BIDE_PORT, BIDE_SERVICE_HOST and others."""
    set_by_kubernetes = {"BIDE_PORT", "BIDE_SERVICE_HOST", "BIDE_SERVICE_PORT"}
    read = {str(getattr(each, "envvar", "")) for each in command_of(["serve"]).params}
    assert read & set_by_kubernetes == set()


# The workflow that publishes.


def test_the_workflow_is_valid_and_builds_images_of_two_architectures() -> None:
    [workflow] = documents(WORKFLOW)
    check_schema(workflow, "github-workflows")
    [build] = [
        step["with"]
        for step in workflow["jobs"]["images"]["steps"]
        if "build-push-action" in step.get("uses", "")
    ]
    assert build["platforms"].split(",") == ["linux/amd64", "linux/arm64"]
    assert ROOT / build["file"] == SERVER
    assert workflow["jobs"]["images"]["needs"] == "publish"
