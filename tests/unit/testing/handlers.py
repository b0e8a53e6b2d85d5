"""What the tests of a worker driven by hand register."""

from collections.abc import Callable
from typing import Any

import pytest

import bide

Handle = Callable[[Any, bide.Delivery], None]
both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])


def register(
    app: bide.App, handle: Handle, queue: str = "q", *, is_async: bool = False, **options: Any
) -> None:
    async def on_loop(body: Any, delivery: bide.Delivery) -> None:
        handle(body, delivery)

    def in_thread(body: Any, delivery: bide.Delivery) -> None:
        handle(body, delivery)

    app.handler(queue, **options)(on_loop if is_async else in_thread)
