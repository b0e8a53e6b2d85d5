"""The catalogue has each text of the templates, and no other."""

import re
from importlib.resources import files
from io import BytesIO

import pytest
from jinja2.ext import babel_extract

from bide.dashboard.rendering import catalogue

TEMPLATES = sorted(
    (one for one in files("bide.dashboard").joinpath("templates").iterdir()),
    key=lambda one: one.name,
)


def texts() -> set[str]:
    found = set()
    for template in TEMPLATES:
        source = BytesIO(template.read_bytes())
        options = {"extensions": "jinja2.ext.i18n", "silent": "false"}
        for _, _, text, _ in babel_extract(source, ("_", "gettext"), (), options):
            assert text is not None
            found.add(text if isinstance(text, str) else str(text[0]))
    return found


def test_each_text_is_translated() -> None:
    assert texts() - catalogue().keys() == set()


def test_no_translation_is_left_over() -> None:
    assert catalogue().keys() - texts() == set()


def test_translations_keep_their_parameters() -> None:
    for english, chinese in catalogue().items():
        named = re.findall(r"%\(\w+\)s", english)
        assert sorted(named) == sorted(re.findall(r"%\(\w+\)s", chinese)), english


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda one: one.name)
def test_no_words_stand_outside_of_the_catalogue(template: object) -> None:
    source = template.read_text("utf-8")  # type: ignore[attr-defined]
    without_code = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", "", source, flags=re.DOTALL)
    plain = re.sub(r"<pre>.*?</pre>|<[^>]*>", " ", without_code, flags=re.DOTALL)
    allowed = {"bide", "p50", "p99", "UTC", "nbsp"}
    assert set(re.findall(r"[A-Za-z]\w+", plain)) <= allowed
