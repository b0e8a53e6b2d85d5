"""Nothing that users meet is missing from the documentation."""

import ast
import re
import runpy
from collections.abc import Iterable
from inspect import signature
from pathlib import Path

import _bide_pytestplugin
import bide
import bide.testing
import bide.timing
from bide.engines.port import Capabilities
from bide.model import errors
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import STATES
from bide.queue.base import BaseQueue

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text(*names: str) -> str:
    return "\n".join((DOCS / name).read_text() for name in names)


def missing(names: Iterable[str], pattern: str, told: str) -> list[str]:
    """Return the names for which a pattern, with the name in place of `NAME`, finds nothing."""
    return [name for name in names if not re.search(pattern.replace("NAME", name), told, re.M)]


def tasks(*others: str) -> str:
    return "\n".join(page.read_text() for page in DOCS.glob("howto/*.md")) + text(*others)


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, errors.BideError)


def test_every_error_has_its_cause_and_mend() -> None:
    assert "`BideError` itself is never raised" in text("errors.md")
    values = {name: getattr(bide, name) for name in bide.__all__}
    names = [name for name, value in values.items() if is_error(value) and name != "BideError"]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", text("errors.md"), re.M)
    assert [name for name in names if rows.count(name) != 1] == []


def test_every_public_name_is_in_the_reference() -> None:
    assert "automodule:: bide.model.errors" in text("reference/exceptions.md")
    assert "autoexception:: bide.model.ended.NotAcked" in text("reference/exceptions.md")
    names = [name for name in bide.__all__ if not is_error(getattr(bide, name))]
    told = text("reference/queue.md", "reference/values.md", "reference/worker.md")
    assert missing(names, r"auto(class|function):: bide\.NAME$", told) == []


def test_every_timer_is_in_the_reference() -> None:
    told = text("reference/timing.md")
    assert missing(bide.timing.__all__, r"auto\w+:: bide\.timing\.NAME$", told) == []


def test_everything_for_tests_is_in_the_reference() -> None:
    told = text("reference/testing.md")
    assert missing(bide.testing.__all__, r"autoclass:: bide\.testing\.NAME$", told) == []


def test_every_fixture_is_told() -> None:
    names = _bide_pytestplugin.__all__
    assert missing(names, r"\| `NAME` \|", text("reference/testing.md")) == []
    assert missing(names, "NAME", text("howto/testing.md")) == []


def test_every_method_has_a_task() -> None:
    """The reference says what it does; a page must say what it is good for."""
    names = [name for name in dir(bide.Queue) if name[0] != "_" and name not in ("name", "url")]
    assert missing(names, r"\.NAME\(", tasks("quickstart.md", "stores.md")) == []


def test_every_option_of_a_queue_is_told() -> None:
    options = BaseQueue.__init__.__kwdefaults__ or {}
    assert missing(options, r"\bNAME=", tasks("operations.md")) == []


def test_every_option_of_a_put_has_a_task() -> None:
    options = list(signature(bide.Queue.put).parameters)[2:]
    assert missing(options, r"\bNAME=", tasks()) == []


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


def test_every_state_and_every_cause_is_told() -> None:
    told = text("lifecycle.md")
    assert missing(STATES, r"^- \*\*NAME\*\*:", told) == []
    assert missing({step.cause for step in TRANSITIONS}, r"^- \*\*NAME\*\*", told) == []


def test_the_diagram_shows_what_the_table_says() -> None:
    """All ways of a message but the rare ones, of causes and of what transfers do."""
    known = {(t.cause, t.before or "-", t.after or "-") for t in TRANSITIONS}
    usual = {
        (t.cause, t.before or "-", t.after or "-")
        for t in TRANSITIONS
        if t.cause not in ("replace", "succeed", "purge", "forget")
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
        ("edit", "delayed", "delayed"),
        ("edit", "delayed", "ready"),
        ("edit", "ready", "delayed"),
        ("edit", "ready", "ready"),
        ("edit", "dead", "dead"),
        ("release", "leased", "delayed"),
        ("end lease", "leased", "ready"),
        ("end lease", "leased", "dead"),
        ("revive", "dead", "delayed"),
    }
    assert usual - drawn == left_out


def test_the_table_of_stores_knows_every_capability() -> None:
    tables = runpy.run_path(str(DOCS / "_ext/tables.py"))
    shown, internal = set(tables["MEANING"]), set(tables["INTERNAL"])
    assert not shown & internal
    assert shown | internal == set(Capabilities.__struct_fields__)


def test_links_lead_somewhere() -> None:
    """Those of the documentation itself are checked by its build."""
    pages = "\n".join(
        (ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")
    )
    for target in re.findall(r"\]\(([^)]+)\)", pages):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            if not anchor:
                assert (ROOT / path).is_file(), target
                continue
            page = (ROOT / path).read_text()
            titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
            anchors = [re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in titles]
            assert anchor in anchors, target


def test_nothing_is_left_to_be_written() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        if "_build" not in page.parts:
            assert not re.search(r"\b(TODO|FIXME|XXX|TBD)\b", page.read_text()), page
