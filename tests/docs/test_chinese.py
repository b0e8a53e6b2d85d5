"""The Chinese pages say what the English ones say, and have the same code."""

import re

import pytest

from tests.docs.test_pages import ROOT, blocks

PAIRS = [("README.md", "README.zh-CN.md"), ("docs/quickstart.md", "docs/quickstart.zh-CN.md")]

FIX = "; change the Chinese page as the English one was changed"


def both(english: str, chinese: str) -> tuple[str, str]:
    return (ROOT / english).read_text(), (ROOT / chinese).read_text()


def prose(page: str) -> str:
    """Return a page without its code."""
    for block in reversed(list(blocks(page))):
        page = page[: block.start] + page[block.end :]
    return page


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_the_code_is_the_same(english: str, chinese: str) -> None:
    theirs, ours = (
        [(block.info, block.text) for block in blocks(page)] for page in both(english, chinese)
    )
    assert ours == theirs, chinese + FIX


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_the_parts_are_the_same(english: str, chinese: str) -> None:
    """Each heading, list item, row of a table and paragraph has its counterpart, in this order."""

    def shape(page: str) -> list[str]:
        lines = [line for line in prose(page).splitlines() if line.strip()]
        kinds = [re.match(r"#+ |\s*- |\||<\w+>|\s*", line) for line in lines]
        return [found[0].strip() or "text" for found in kinds if found]

    theirs, ours = map(shape, both(english, chinese))
    assert ours == theirs, chinese + FIX


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_the_names_and_links_are_the_same(english: str, chinese: str) -> None:
    """In each line: what is in backticks, and where links lead but to the other language."""

    def names(line: str) -> list[str]:
        links = [link for link in re.findall(r"\]\(([^)]+)\)", line) if not own(link)]
        return sorted(re.findall(r"`[^`]+`", line) + links)

    def own(link: str) -> bool:
        return "zh-CN" in link or english.endswith(link)

    theirs, ours = (prose(page).splitlines() for page in both(english, chinese))
    for there, here in zip(theirs, ours, strict=True):
        assert names(here) == names(there), f"{here!r} and {there!r}{FIX}"
