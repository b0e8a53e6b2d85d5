"""The names of constants in the SQL that stores run."""

import re
from importlib.resources import files

import pytest

from bide.engines.postgres.constants import CONSTANTS as POSTGRES
from bide.engines.postgres.schema import function_texts
from bide.engines.sqlite.constants import CONSTANTS as SQLITE
from bide.engines.sqlite.tables import SQL

POSTGRES_FILES = (files("bide.engines.postgres") / "schema" / "functions").iterdir()
SQLITE_FILES = (
    files("bide.engines.sqlite") / name for name in ("limits.sql", "reading.sql", "statements.sql")
)
WORDS = {
    word
    for file in (*POSTGRES_FILES, *SQLITE_FILES)
    for word in re.findall(r"\w+", re.sub(r"--.*", "", file.read_text()))
}


@pytest.mark.parametrize("text", [*function_texts(), *vars(SQL).values()])
def test_each_name_in_capitals_is_that_of_a_constant(text: str) -> None:
    code = re.sub(r"--.*|'(?:[^']|'')*'", "", text)
    assert re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", code) == []


def test_no_word_of_sql_is_the_name_of_a_constant_in_small_letters() -> None:
    names = POSTGRES.keys() | SQLITE.keys()
    assert [word for word in WORDS - names if word.upper() in names] == []
