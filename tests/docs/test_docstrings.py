"""The examples in docstrings run."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import bide
from bide.lane.shared import close_lanes

IN_A_PROJECT = "bide.contrib.django."
"""These modules can be imported in a project of Django only."""

MODULES = [
    "bide",
    *(
        found.name
        for found in pkgutil.walk_packages(bide.__path__, "bide.")
        if not found.name.startswith(IN_A_PROJECT)
    ),
]
PARTS = sorted({".".join(name.split(".")[:2]) for name in MODULES})


@pytest.mark.parametrize("part", PARTS)
def test_examples(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIDE_URL", raising=False)
    failed = []
    for name in MODULES:
        if name == part or (part != "bide" and name.startswith(f"{part}.")):
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)  # what one leaves in its store disturbs no other
            close_lanes("memory://")
            module = importlib.import_module(name)
            if doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed:
                failed.append(name)
    assert failed == []
