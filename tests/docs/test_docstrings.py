"""The examples in docstrings run."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import bide

MODULES = [found.name for found in pkgutil.walk_packages(bide.__path__, "bide.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BIDE_URL", raising=False)
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0
