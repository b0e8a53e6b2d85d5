"""Write `llms.txt` beside the pages: a list of them for programs that read Markdown.

Each page is copied as Markdown, too. The list names the HTML of those with directives that only
Sphinx can expand.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

EXPANDED = re.compile(
    r"^```\{(eval-rst|include|literalinclude|capabilities|transitions|limits|click)\}", re.MULTILINE
)
"""What makes a page of less use as Markdown than as HTML."""

SHORT = 60
"""A summary that is shorter gets one more sentence."""

FIRST = ("index", "quickstart", "faq", "troubleshooting", "glossary", "guarantees", "lifecycle")
"""Pages that are listed before all others."""


def title_and_summary(page: str) -> tuple[str, str]:
    """Return the title of a page, and the first sentences below it as plain text."""
    title, _, rest = page.partition("# ")[2].partition("\n")
    rest = re.sub(r"^```.*?^```$", "", rest, flags=re.MULTILINE | re.DOTALL)
    blocks = (block.strip() for block in re.split(r"\n{2,}", rest))
    paragraph = next((block for block in blocks if re.match(r"\w|[\"`\[]|\*\*", block)), "")
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    summary = ""
    for sentence in re.split(r"(?<=[.?!。])\"? ", text):
        if len(summary) < SHORT:
            summary = f"{summary} {sentence}".strip()
    return title.strip(), summary.removesuffix(":")


def location(name: str, page: str) -> str:
    """Return where a page is, from the top of the documentation."""
    return f"{name}.html" if EXPANDED.search(page) else f"{name}.md"


def order(name: str) -> tuple[int, str]:
    """Sort the most useful pages first, then by folder."""
    return (FIRST.index(name) if name in FIRST else len(FIRST) + name.count("/"), name)


def lines(folder: Path, names: set[str]) -> Iterator[str]:
    """Return the lines of `llms.txt` for pages of a folder."""
    index = (folder / "index.md").read_text()
    summary = next(line for line in index.splitlines() if line.startswith("Call a function later"))
    yield from ("# bide", "", f"> bide is a delay queue for Python. {summary}", "")
    section = ""
    for name in sorted(names, key=order):
        heading = {"howto": "How-to guides", "reference": "Reference"}.get(
            name.rpartition("/")[0], "Start" if name in FIRST else "More"
        )
        if heading != section:
            yield from (*([""] if section else []), f"## {heading}", "")
            section = heading
        page = (folder / f"{name}.md").read_text()
        title, sentence = title_and_summary(page)
        yield f"- [{title or name}]({location(name, page)})" + (f": {sentence}" if sentence else "")


def text_of(folder: Path, names: set[str]) -> str:
    """Return `llms.txt` for pages of a folder."""
    return "\n".join(lines(folder, names)) + "\n"


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the list and the copies when the build has ended well."""
    environment: BuildEnvironment = app.env
    if error is not None or app.builder.format != "html":
        return
    folder, output = Path(app.srcdir), Path(app.outdir)
    for name in environment.found_docs:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / f"{name}.md", output / f"{name}.md")
    (output / "llms.txt").write_text(text_of(folder, environment.found_docs))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to the end of the build."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
