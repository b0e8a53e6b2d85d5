"""Nothing that users meet is missing from the documentation, and the pages name what exists."""

import ast
import re
import runpy
from collections.abc import Iterable
from inspect import signature
from pathlib import Path

import _bide_pytestplugin
import bide
import bide.testing
import bide.testing.history
import bide.timing
from bide.cli.program import FILES
from bide.dashboard import ACTIONS
from bide.engines.port import Capabilities
from bide.model import errors
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import STATES
from bide.queue.base import BaseQueue
from bide.testing.history import KINDS
from tests.test_architecture import MAY_IMPORT

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
    assert missing(bide.testing.__all__, r"auto(class|function):: bide\.testing\.NAME$", told) == []


def test_all_of_histories_is_in_the_reference() -> None:
    told = text("reference/testing.md")
    types = {"Event", "KINDS"}  # the tables have these
    names = set(bide.testing.history.__all__) - types
    assert missing(names, r"auto\w+:: bide\.testing\.history\.NAME$", told) == []
    assert missing(KINDS, r"^\| `NAME` \|", told) == []


def test_every_fixture_is_told() -> None:
    names = _bide_pytestplugin.__all__
    assert missing(names, r"\| `NAME` \|", text("reference/testing.md")) == []
    assert missing(names, "NAME", text("howto/testing.md")) == []


def docstrings(module: object, names: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Return the docstrings of public names and of the public members of classes among them."""
    for name in names:
        value = getattr(module, name)
        yield name, value.__doc__ or ""
        for member in dir(value) if isinstance(value, type) else ():
            if not member.startswith("_"):
                yield f"{name}.{member}", getattr(value, member).__doc__ or ""


def test_every_entry_of_the_reference_says_the_whole_thing_in_place() -> None:
    told = [*docstrings(bide, bide.__all__), *docstrings(bide.testing, bide.testing.__all__)]
    assert len(told) > 300
    elsewhere = [name for name, text in told if re.search(r"[:,;] as (for|of|with) `", text)]
    assert elsewhere == []


def test_the_delivery_of_a_handler_has_one_type() -> None:
    pages = [DOCS.parent / "README.md", *(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)]
    shown = {
        f"{page.name}: {annotation}"
        for page in pages
        for annotation in re.findall(
            r"\bdeliver(?:y|ies): (?:list\[)?(bide\.\w+)", page.read_text()
        )
        if annotation != "bide.Handling"
    }
    assert shown == set()


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


def test_every_action_of_the_dashboard_is_told() -> None:
    assert missing(ACTIONS, "`NAME`", text("howto/dashboard.md")) == []
    assert missing(ACTIONS, r"`bide\.NAME`", text("howto/django.md")) == []


def test_every_state_and_every_cause_is_told() -> None:
    told = text("lifecycle.md")
    assert missing(STATES, r"^- \*\*NAME\*\*:", told) == []
    assert missing({step.cause for step in TRANSITIONS}, r"^- \*\*NAME\*\*", told) == []


def test_the_diagram_shows_what_the_table_says() -> None:
    """All ways of a message but the rare ones: of causes, transfers, what is stopped, repeats."""
    known = {(t.cause, t.before or "-", t.after or "-") for t in TRANSITIONS}
    usual = {
        (t.cause, t.before or "-", t.after or "-")
        for t in TRANSITIONS
        if t.cause not in ("replace", "succeed", "purge", "move", "forget")
        and not t.cause.startswith("renew")
        and not any(
            word in t.when
            for word in ("import", "move", "asked to stop", "group is closed", "it repeats")
        )
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
        ("postpone", "delayed", "delayed"),
        ("postpone", "delayed", "ready"),
        ("postpone", "ready", "delayed"),
        ("postpone", "ready", "ready"),
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


THREATS = (ROOT / "docs/threat-model.md").read_text()


def test_every_attack_names_a_test_that_exists() -> None:
    _, _, table = THREATS.partition("## What protects")
    rows = [row for row in table.partition("\n## ")[0].splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert files, row
        for file in files:
            assert re.search(r"^ *(async )?def ", (ROOT / file).read_text(), re.M), file


def test_the_page_on_threats_is_linked() -> None:
    assert "docs/threat-model.md" in (ROOT / "SECURITY.md").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "(SECURITY.md)" in readme
    assert "(docs/threat-model.md)" in readme
    index = (ROOT / "docs/index.md").read_text()
    assert "(threat-model.md)" in index
    assert "\nthreat-model\n" in index


SOURCE = ROOT / "src" / "bide"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()

NAMED = re.compile(r"`((?:[\w.-]+/)*(?:[\w-]+/|[\w-]+\.(?:py|lua|sql|toml)|py\.typed))`")
"""A file, or a folder, which ends with a slash."""

RECIPES = {"once", "order-timeout", "refill", "reminders", "web", "index"}
"""How-to guides that use features of other pages, and describe none."""

NOT_DRAWN = {
    "bide",
    "bide.__main__",
    "bide.clock",
    "bide.logs",
    "bide.tasks",
    "bide.testing",
    "bide.threads",
    "bide.timing",
}
"""Parts that are not in the picture: they are used on all floors, or use all."""

OBVIOUS = {"self", "body", "name", "url", "close", "clock"}
"""Of methods and arguments, those that are no feature."""


def section(title: str) -> str:
    _, _, rest = ARCHITECTURE.partition(f"\n## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the tables in a text, without the heads of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("room", "feature", "form")]


def rooms() -> dict[str, str]:
    """Return the sentence of each room: a file, or a folder with the files directly in it."""
    return {name: what for places, what in rows(section("The rooms")) for name in names(places)}


def names(text: str) -> list[str]:
    return NAMED.findall(text)


def files() -> set[str]:
    """Return the files of bide, relative to the package."""
    paths = [path for path in SOURCE.rglob("*") if path.is_file()]
    return {
        path.relative_to(SOURCE).as_posix() for path in paths if "__pycache__" not in path.parts
    }


def test_each_file_of_bide_has_a_place_on_it() -> None:
    named, folders = set(names(ARCHITECTURE)), set(rooms())
    lost = {name for name in files() - named if f"{Path(name).parent}/" not in folders}
    assert lost == set(), "add them to the row of a room or of a feature"


def test_each_file_and_folder_that_it_names_exists() -> None:
    anywhere = {path.name for path in SOURCE.rglob("*.py")}
    named = set(names(ARCHITECTURE))
    assert len(named) > 100
    missing = {
        name
        for name in named
        if not (SOURCE / name).exists()
        and not (ROOT / name).exists()
        and ("/" in name or name not in anywhere)
    }
    assert missing == set()


def test_the_lists_for_contributors_name_files_that_exist() -> None:
    """They leave out the folder where the sentence says it: `lua/_records.lua` of Redis."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    ends = [f"/{path.relative_to(SOURCE).as_posix()}" for path in SOURCE.rglob("*")]
    missing = {
        name
        for name in names(text)
        if not (ROOT / name).exists()
        and not any(end.endswith(f"/{name.rstrip('/')}") for end in ends)
    }
    assert missing == set()


def test_a_row_of_a_room_says_what_is_in_it() -> None:
    assert len(rooms()) > 40
    assert [name for name, what in rooms().items() if len(what.split()) < 3] == []


def test_only_a_room_speaks_for_the_files_in_a_folder() -> None:
    """A feature may name a folder, but what is in the folder is said once, among the rooms."""
    folders = {name for name in names(section("The features")) if name.endswith("/")}
    assert folders - set(rooms()) == set()


def test_the_picture_of_the_floors_is_that_of_the_imports() -> None:
    picture = section("The floors").partition("```text\n")[2].partition("```")[0]
    lines = [line for line in picture.splitlines() if "─" not in line]
    floors = {}
    for height, line in enumerate(reversed(lines)):
        parts = re.split(r" {3,}", line.strip())[:-1]  # the last says what the floor is
        for word in re.findall(r"\w+", " ".join(parts).replace("command line", "cli")):
            floors[f"bide.{word}"] = height
    drawn = floors.keys() & MAY_IMPORT.keys()
    assert MAY_IMPORT.keys() - drawn == NOT_DRAWN
    upward = {
        (part, other)
        for part in drawn
        for other in MAY_IMPORT[part] & drawn
        if floors[other] > floors[part]
    }
    assert upward == set()


def test_each_feature_with_a_guide_has_a_row() -> None:
    linked = set(re.findall(r"\(howto/([\w-]+)\.md\)", section("The features")))
    guides = {path.stem for path in (ROOT / "docs" / "howto").glob("*.md")}
    assert guides - RECIPES - linked == set()
    assert all(len(row) == 3 for row in rows(section("The features")))


def test_each_method_option_and_command_has_a_row() -> None:
    methods = {name for name in dir(bide.Queue) if not name.startswith("_")}
    options = {*signature(bide.Queue.put).parameters, *signature(bide.Queue).parameters}
    features = " ".join(row[0] for row in rows(section("The features")))
    words = set(re.findall(r"[a-z][\w-]+", features))
    assert (methods | options | set(FILES)) - words - OBVIOUS == set()


def test_each_system_that_is_imported_has_a_file_of_its_name() -> None:
    assert {"arq", "bullmq", "celery", "huey", "rq", "redis_sorted_set"} <= {
        path.stem for path in (SOURCE / "importing").glob("*.py")
    }


def test_the_page_on_the_architecture_is_linked() -> None:
    assert "(docs/architecture.md)" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "\narchitecture\n" in (ROOT / "docs" / "index.md").read_text()
