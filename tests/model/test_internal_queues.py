import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bide
from bide.model.internal_queues import (
    INTERNAL_PREFIX,
    SERVER_NAMESPACE,
    InternalQueue,
    is_internal,
    is_listed,
)

SOURCE = Path(bide.__file__).parent

KEYS_OF_REDIS = {"engines/redis/layout.py", "importing/transit.py"}
"""Files with names of keys, which are no queues, and begin with the same prefix."""


@pytest.mark.parametrize("queue", InternalQueue)
def test_an_internal_queue_is_recognized_and_not_listed(queue: InternalQueue) -> None:
    assert is_internal(queue.value)
    assert not is_listed(queue.value)
    assert [other for other in InternalQueue if other.matches(queue.value)] == [queue]


@pytest.mark.parametrize("queue", InternalQueue)
def test_only_those_of_servers_are_not_in_namespaces(queue: InternalQueue) -> None:
    of_servers = queue.value.startswith(SERVER_NAMESPACE)
    assert queue.matches(f"shop/{queue.value}") is not of_servers
    if not of_servers:
        assert queue.matches(queue.beside("shop/orders"))
        assert is_internal(queue.beside("shop/orders"))


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts in the code of a file, also those in f-strings, without docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text


def test_no_other_file_spells_an_internal_name() -> None:
    prefixes = INTERNAL_PREFIX, f"{SERVER_NAMESPACE}/"
    paths = {path: path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    spelling = {
        name
        for path, name in paths.items()
        if name not in KEYS_OF_REDIS and any(text.startswith(prefixes) for text in texts_of(path))
    }
    assert spelling == {"model/internal_queues.py"}
