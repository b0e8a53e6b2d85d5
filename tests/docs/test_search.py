"""Programs and people find the pages: `llms.txt` has them all, and the search knows their words."""

import re
import runpy
from typing import Any

import pytest

from tests.docs.test_complete import DOCS

PAGES = {
    path.relative_to(DOCS).with_suffix("").as_posix()
    for path in DOCS.rglob("*.md")
    if "_build" not in path.parts
}


@pytest.fixture(scope="module")
def keywords() -> dict[str, tuple[str, ...]]:
    words: dict[str, tuple[str, ...]] = runpy.run_path(str(DOCS / "_ext/keywords.py"))["KEYWORDS"]
    return words


@pytest.fixture(scope="module")
def llms() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "_ext/llms.py"))


@pytest.fixture(scope="module")
def entries(llms: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The title, the link and the summary of each entry of `llms.txt`."""
    listed = llms["text_of"](DOCS, PAGES)
    return re.findall(r"^- \[(.+?)\]\((\S+?)\)(?:: (.+))?$", listed, re.M)


def test_the_list_for_programs_links_to_each_page_once(
    entries: list[tuple[str, str, str]],
) -> None:
    links = [re.sub(r"\.(md|html)$", "", link) for _, link, _ in entries]
    assert sorted(links) == sorted(PAGES)


def test_the_list_for_programs_says_what_a_guide_is_about(
    entries: list[tuple[str, str, str]],
) -> None:
    unclear = [link for _, link, summary in entries if "howto/" in link and len(summary) < 20]
    assert unclear == []


def test_pages_that_only_sphinx_can_expand_are_linked_as_html(llms: dict[str, Any]) -> None:
    assert llms["location"]("stores", (DOCS / "stores.md").read_text()) == "stores.html"
    assert llms["location"]("faq", (DOCS / "faq.md").read_text()) == "faq.md"


@pytest.mark.parametrize("word", ["unique", "dynamic", "cron", "kubernetes", "workflow"])
def test_users_of_other_systems_find_a_page_by_their_word(
    word: str, keywords: dict[str, tuple[str, ...]]
) -> None:
    """The build of the documentation checks that its search does find them."""
    assert [page for page, words in keywords.items() if word in words]


def test_keywords_are_of_pages_that_exist(keywords: dict[str, tuple[str, ...]]) -> None:
    assert set(keywords) - PAGES == set()


INDEX = (
    'Search.setIndex({"docnames": ["faq", "howto/once"], "terms": {"a": 0, "b": [0, 1]}, '
    '"titleterms": {"a": 1}})'
)


def test_the_index_of_the_search_is_read() -> None:
    read = runpy.run_path(str(DOCS / "_ext/keywords.py"))["pages_by_word"]
    assert read(INDEX) == {"a": {"faq", "howto/once"}, "b": {"faq", "howto/once"}}


def test_the_readme_begins_with_a_short_program_and_what_it_prints() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    before, _, rest = readme.partition("```python\n")
    assert "\n## " not in before
    program, _, after = rest.partition("```")
    assert len([line for line in program.splitlines() if line and line[0] != "#"]) <= 8
    assert after.lstrip().startswith("```sh\npython shop.py\n")
    assert "```text\norder-42 is cancelled\n```" in after.partition("\n## ")[0]
    titles = re.findall(r"^## (.+)$", readme, re.M)
    assert titles[:2] == ["What it promises", "Instead of"]
    for name in ("Celery", "RQ", "polling a table", "RabbitMQ", "Redis sorted set"):
        assert re.search(rf"^\| (a )?{name}", readme, re.M), name
