"""The process of a worker: which event loop it runs on."""

import asyncio

import pytest

from bide.worker.process import child


def test_uvloop_is_used_where_it_is_installed() -> None:
    with asyncio.Runner(loop_factory=child.loop_factory()) as runner:
        assert type(runner.get_loop()).__module__.partition(".")[0] == "uvloop"


def test_without_uvloop_it_is_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "find_spec", lambda name: None)
    with asyncio.Runner(loop_factory=child.loop_factory()) as runner:
        assert type(runner.get_loop()).__module__.partition(".")[0] == "asyncio"
