"""The page on threats names tests that exist, and is found."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/threat-model.md").read_text()


def test_every_attack_names_a_test_that_exists() -> None:
    _, _, table = PAGE.partition("## What protects")
    rows = [row for row in table.partition("\n## ")[0].splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert files, row
        for file in files:
            assert re.search(r"^ *(async )?def ", (ROOT / file).read_text(), re.M), file


def test_it_is_linked() -> None:
    assert "docs/threat-model.md" in (ROOT / "SECURITY.md").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "(SECURITY.md)" in readme
    assert "(docs/threat-model.md)" in readme
    index = (ROOT / "docs/index.md").read_text()
    assert "(threat-model.md)" in index
    assert "\nthreat-model\n" in index
