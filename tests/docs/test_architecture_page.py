"""The page on the architecture: each file of bide has a place on it, and what it names exists."""

import re
from inspect import signature
from pathlib import Path

import bide
from bide.cli.program import FILES
from tests.test_architecture import MAY_IMPORT

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bide"
PAGE = (ROOT / "docs" / "architecture.md").read_text()

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
    _, _, rest = PAGE.partition(f"\n## {title}\n")
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
    named, folders = set(names(PAGE)), set(rooms())
    lost = {name for name in files() - named if f"{Path(name).parent}/" not in folders}
    assert lost == set(), "add them to the row of a room or of a feature"


def test_each_file_and_folder_that_it_names_exists() -> None:
    anywhere = {path.name for path in SOURCE.rglob("*.py")}
    named = set(names(PAGE))
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


def test_it_is_linked() -> None:
    assert "(docs/architecture.md)" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "\narchitecture\n" in (ROOT / "docs" / "index.md").read_text()
