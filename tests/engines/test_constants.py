"""The names of constants in the SQL that stores run."""

import re
from importlib.resources import files

import pytest

from bide.engines.postgres.constants import CONSTANTS as POSTGRES
from bide.engines.postgres.schema import function_texts

POSTGRES_FILES = files("bide.engines.postgres") / "schema" / "functions"


def test_each_name_in_the_functions_of_postgresql_is_that_of_a_constant() -> None:
    for text in function_texts():
        code = re.sub(r"--.*|'(?:[^']|'')*'", "", text)
        assert re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", code) == []


@pytest.mark.parametrize("name", POSTGRES)
def test_no_word_of_sql_is_the_name_of_a_constant(name: str) -> None:
    for file in POSTGRES_FILES.iterdir():
        code = re.sub(r"--.*", "", file.read_text())
        assert not re.search(rf"\b{name.lower()}\b", code), file
