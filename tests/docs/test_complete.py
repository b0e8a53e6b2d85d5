"""Nothing that users meet is missing from the documentation."""

import ast
import re
import runpy
from inspect import signature
from pathlib import Path

import pytest

import _bide_pytestplugin
import bide
import bide.testing
import bide.timing
from bide.engines.port import Capabilities
from bide.engines.sqlite.connection import APPLICATION_ID
from bide.engines.sqlite.statements import migrations
from bide.model import errors
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import STATES
from bide.queue.face import Face

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text(*names: str) -> str:
    return "\n".join((DOCS / name).read_text() for name in names)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_its_cause_and_mend(name: str) -> None:
    rows = re.findall(rf"^\| `{name}` \| (.+) \| (.+) \|$", text("errors.md"), re.MULTILINE)
    if name == "BideError":
        assert "`BideError` itself is never raised" in text("errors.md")
    else:
        assert len(rows) == 1


@pytest.mark.parametrize("name", bide.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    if name in errors.__all__:
        assert "automodule:: bide.model.errors" in text("reference/exceptions.md")
    else:
        told = text("reference/queue.md", "reference/values.md", "reference/worker.md")
        assert re.search(rf"auto(class|function):: bide\.{name}\n", told)


@pytest.mark.parametrize("name", bide.timing.__all__)
def test_every_timer_is_in_the_reference(name: str) -> None:
    assert re.search(rf"auto\w+:: bide\.timing\.{name}\n", text("reference/timing.md"))


@pytest.mark.parametrize("name", bide.testing.__all__)
def test_everything_for_tests_is_in_the_reference(name: str) -> None:
    assert f"autoclass:: bide.testing.{name}\n" in text("reference/testing.md")


@pytest.mark.parametrize("name", _bide_pytestplugin.__all__)
def test_every_fixture_is_told(name: str) -> None:
    assert f"| `{name}` |" in text("reference/testing.md")
    assert name in text("howto/testing.md")


@pytest.mark.parametrize("name", [name for name in dir(bide.Queue) if not name.startswith("_")])
def test_every_method_has_a_task(name: str) -> None:
    """The reference says what it does; a page must say what it is good for."""
    pages = [*DOCS.glob("howto/*.md"), DOCS / "quickstart.md", DOCS / "stores.md"]
    told = "\n".join(page.read_text() for page in pages)
    if name not in ("name", "url"):
        assert re.search(rf"\.{name}\(", told)


@pytest.mark.parametrize("name", sorted(Face.__init__.__kwdefaults__ or ()))
def test_every_option_of_a_queue_is_told(name: str) -> None:
    pages = [*DOCS.glob("howto/*.md"), DOCS / "operations.md"]
    assert any(re.search(rf"\b{name}=", page.read_text()) for page in pages)


@pytest.mark.parametrize("name", list(signature(bide.Queue.put).parameters)[2:])
def test_every_option_of_a_put_has_a_task(name: str) -> None:
    assert any(re.search(rf"\b{name}=", page.read_text()) for page in DOCS.glob("howto/*.md"))


def test_every_option_of_a_url_is_told() -> None:
    """The options that an engine asks `registry.options` for."""
    told = text("stores.md")
    found = []
    for path in (ROOT / "src/bide/engines").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "options"
            if isinstance(node, ast.Call) and called:
                found += [str(a.value) for a in node.args[1:] if isinstance(a, ast.Constant)]
    assert found
    for name in found:
        assert f"| `{name}` |" in told


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_told(state: str) -> None:
    assert f"- **{state}**:" in text("lifecycle.md")


@pytest.mark.parametrize("cause", sorted({transition.cause for transition in TRANSITIONS}))
def test_every_cause_is_told(cause: str) -> None:
    assert re.search(rf"^- \*\*{cause}\*\*", text("lifecycle.md"), re.MULTILINE)


def test_the_diagram_shows_what_the_table_says() -> None:
    """All ways of a message but the rare ones: replace, purge, forget, and what transfers do."""
    known = {(t.cause, t.before or "-", t.after or "-") for t in TRANSITIONS}
    usual = {
        (t.cause, t.before or "-", t.after or "-")
        for t in TRANSITIONS
        if t.cause not in ("replace", "purge", "forget")
        and not any(word in t.when for word in ("import", "move"))
    }
    drawn = {
        (cause, before, after)
        for before, after, causes in re.findall(
            r'data-way="(\S+) (\S+) (\S+)"', text("_static/lifecycle.svg")
        )
        for cause in causes.split(",")
    }
    assert drawn <= known
    left_out = {
        ("put", "-", "ready"),
        ("reschedule", "delayed", "delayed"),
        ("reschedule", "delayed", "ready"),
        ("reschedule", "ready", "ready"),
        ("release", "leased", "delayed"),
        ("revive", "dead", "delayed"),
    }
    assert usual - drawn == left_out


def test_a_rescued_file_gets_the_right_marks() -> None:
    marks = f"application_id = {APPLICATION_ID}; PRAGMA user_version = {len(migrations())}"
    assert marks in text("operations.md")


def test_the_table_of_stores_knows_every_capability() -> None:
    tables = runpy.run_path(str(DOCS / "_ext/tables.py"))
    shown, internal = set(tables["MEANING"]), set(tables["INTERNAL"])
    assert not shown & internal
    assert shown | internal == set(Capabilities.__struct_fields__)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Those of the documentation itself are checked by its build."""
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / name).read_text()):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            page = (ROOT / path).read_text()
            titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
            anchors = [re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in titles]
            assert not anchor or anchor in anchors, target


def test_nothing_is_left_to_be_written() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        if "_build" not in page.parts:
            assert not re.search(r"\b(TODO|FIXME|XXX|TBD)\b", page.read_text()), page
