"""All code of the documentation runs, and prints what the page says; so do docstrings."""

import builtins
import doctest
import json
import os
import re
import shlex
import subprocess
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import click
import pytest

from bide.cli import main as bide
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
PAGES = [
    path
    for path in [
        ROOT / "README.md",
        ROOT / "README.zh-CN.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("examples/**/*.md")),
    ]
    if path.exists() and "_build" not in path.parts
]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]

REAL_TIME = "<!-- real time -->"

REDIS = "redis://localhost:6379/"
"""On a page: a server that is started for it."""
POSTGRES = "postgresql://localhost/shop"
"""The same of PostgreSQL."""
"""A page with this comment runs by the system's clock, its programs as processes of their own."""

NOT_RUN = re.compile(r"python not-run: \S.*")
"""How a block is marked that does not run: with the reason."""

PROGRAMS = {
    ".",
    "bide",
    "cd",
    "cp",
    "curl",
    "docker",
    "export",
    "git",
    "make",
    "opentelemetry-instrument",
    "pip",
    "python",
    "python3",
    "sqlite3",
}
"""What a line of a shell block may begin with."""

FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks)$"
    r"|^<!-- run\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
HIDDEN = re.compile(r"^<!-- run\n.*?^-->$", re.DOTALL | re.MULTILINE)
BUILT_IN = {*dir(builtins), "__name__", "__file__"}
CAPTION = re.compile(r"\A:caption: (\S+)\n\n?")
NAME = re.compile(r"\A# (\S+\.py)\n")
"""The first line of a block of code that is a file, where captions are not shown."""


class Block(NamedTuple):
    """A piece of a page between fences, or hidden code: a comment that begins with `run`."""

    info: str
    text: str
    line: int
    end: int
    start: int


def blocks(page: str) -> Iterator[Block]:
    for found in FENCE.finditer(page):
        indent = found["indent"] or ""
        text = re.sub(rf"^{indent}", "", found["text"] or found["hidden"] or "", flags=re.M)
        line = page.count("\n", 0, found.start()) + 1
        info = "python" if found["hidden"] is not None else found["info"].strip()
        yield Block(info, text, line, found.end(), found.start())


def steps(page: str) -> Iterator[dict[str, Any]]:
    """Return what is to be run: code, examples, files and programs, with what they print."""
    found = list(blocks(page))
    files: set[str] = set()
    for number, block in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else None
        output = None
        if after and after.info == "text" and not page[block.end : after.start].strip():
            output = after.text
        step = {"line": block.line, "text": block.text, "output": output}
        if block.info == "python" and (name := NAME.match(block.text)):
            files.add(name[1])
            yield {**step, "kind": "file", "name": name[1]}
        elif block.info in ("python", "pycon"):
            yield {**step, "kind": block.info}
        elif block.info == "{code-block} python":
            caption = CAPTION.match(block.text)
            assert caption, f"line {block.line}: a code-block is a file, name it by its caption"
            files.add(caption[1])
            text = block.text[caption.end() :]
            yield {**step, "kind": "file", "name": caption[1], "text": text}
        elif block.info == "sh":
            for words in commands(block):
                if words[0] == "python" and words[1] in files:
                    yield {**step, "kind": "program", "name": words[1]}


def commands(block: Block) -> Iterator[list[str]]:
    """Return the commands of a shell block, word by word; in a console, those behind a prompt."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.info == "console":
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        for part in re.split(r" \| | && ", line.partition(" #")[0]):
            if part.strip():
                yield shlex.split(re.split(" [<>] ", part)[0])


@pytest.mark.parametrize("name", NAMES)
def test_page_runs(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page = (ROOT / name).read_text()
    found = list(steps(page))
    if not found:
        return
    server = None
    if REDIS in page:
        (tmp_path / "redis").mkdir()
        server = RedisServer(tmp_path / "redis", appendonly="yes")
        for step in found:
            step["text"] = step["text"].replace(REDIS, f"{server.url}?db=")
    if POSTGRES in page:
        postgres = request.getfixturevalue("postgres")
        with postgres.client() as client:
            client.execute("DROP DATABASE IF EXISTS shop")
            client.execute("CREATE DATABASE shop")
        url = postgres.url.replace("/postgres?", "/shop?")
        for step in found:
            step["text"] = step["text"].replace(POSTGRES, url)
    plan = {"path": name, "blocks": found, "real_time": REAL_TIME in page}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BIDE_")}
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(RUNNER)],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=300,
        )
    finally:  # also of a page that takes too long
        if server is not None:
            server.stop()
    assert done.returncode == 0, done.stdout + done.stderr


YOURS = {"open_database", "BASE_DIR", "DATABASES"}
"""What a page says that its reader has, and the settings of every Django project."""


@pytest.mark.parametrize("name", NAMES)
def test_code_that_is_shown_binds_its_names(name: str) -> None:
    """A reader has neither the hidden code of a page nor the clock that its test moves."""
    page = HIDDEN.sub("", (ROOT / name).read_text())
    session = YOURS | BUILT_IN
    for step in steps(page):
        source = step["text"]
        if step["kind"] == "pycon":
            source = "".join(
                example.source for example in doctest.DocTestParser().get_examples(source)
            )
        elif step["kind"] == "program":
            continue
        bound, read = names(source)
        if step["kind"] == "file":
            assert read - bound <= BUILT_IN, f"{name}:{step['line']}"
        else:
            session |= bound
            assert read <= session, f"{name}:{step['line']}: {read - session}"


def names(source: str) -> tuple[set[str], set[str]]:
    """Return the global names that code binds, and those that it reads."""
    bound, read = set(), set()
    tables = [symtable.symtable(source, "page", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (is_module or symbol.is_global()):
                read.add(symbol.get_name())
            if is_module and (symbol.is_assigned() or symbol.is_imported()):
                bound.add(symbol.get_name())
    return bound, read


def test_every_block_says_what_it_is() -> None:
    """So that nothing escapes the tests by a slip of its info string."""
    known = ("pycon", "text", "sh", "json", "console", "Dockerfile", "ini", "toml", "{code-block}")
    directives = (
        "{toctree}",
        "{include}",
        "{eval-rst}",
        "{raw}",
        "{transitions}",
        "{capabilities}",
        "{limits}",
        "{note}",
        "{click}",
        "{literalinclude}",
    )
    unknown = [
        f"{name}:{block.line}: {block.info!r}"
        for name in NAMES
        for block in blocks((ROOT / name).read_text())
        if not (block.info == "python" or NOT_RUN.fullmatch(block.info))
        and block.info.split(" ")[0] not in (*known, *directives)
    ]
    assert unknown == []


def test_what_is_installed_is_there() -> None:
    """As long as bide is on no package index, it is installed from the clone.

    docs/install.md says what else there is, and when bide may be named: tests/system/deploy.
    """
    wrong = [
        name
        for name in NAMES
        if name != "docs/install.md"
        and re.search(r"pip install '?bide\b", (ROOT / name).read_text())
    ]
    assert wrong == []


def test_commands_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    makefile = (ROOT / "Makefile").read_text()
    for name in NAMES:
        for block in blocks((ROOT / name).read_text()):
            for words in commands(block) if block.info in ("sh", "console") else ():
                told = f"{name}:{block.line}: {' '.join(words)}"
                if block.info == "sh":
                    assert words[0] in PROGRAMS, told
                if words[0] == "make":
                    for target in (word for word in words[1:] if "=" not in word):
                        assert re.search(rf"^{target}:", makefile, re.M), told
                if words[0] == "opentelemetry-instrument":
                    words = words[words.index("bide") :]
                if words[0] == "bide":
                    parse(words[1:])


def parse(words: list[str]) -> None:
    """Have the command line understand a command, and not carry it out."""
    for word in words:
        if re.fullmatch(r"[\w.-]+\.\w+", word):
            Path(word).touch()  # a file that a command reads has to be there
    with patch.object(click.Command, "invoke"):
        click.Group.main(bide, words, "bide", standalone_mode=False)


BOUND = 120.0


@pytest.mark.process
def test_the_first_program_puts_cancels_and_runs_in_a_worker(tmp_path: Path) -> None:
    page = blocks((ROOT / "README.md").read_text())
    shop = next(block.text for block in page if "App" in block.text)
    paid = next(block.text for block in page if "from shop" in block.text)
    assert len([line for line in shop.splitlines() if line and not line.startswith("#")]) == 8
    (tmp_path / "shop.py").write_text(shop.replace("5s", "1ms").replace("30m", "1ms"))
    (tmp_path / "paid.py").write_text(paid)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("BIDE_")}
    environment["PYTHONUNBUFFERED"] = "1"
    for program, printed in (("shop.py", ""), ("paid.py", "order-42 is cancelled\n")):
        finished = subprocess.run(
            [sys.executable, "-W", "error", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=True,
        )
        assert finished.stdout == printed
    with subprocess.Popen(
        [sys.executable, "-m", "bide", "worker", "shop:app"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "order 41 has timed out\n"
        finally:
            worker.terminate()
        assert worker.wait(BOUND) == 0
        assert worker.stdout.read() == ""
