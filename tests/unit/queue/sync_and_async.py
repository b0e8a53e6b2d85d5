"""Both faces of a queue as one, so that each promise is written down once and holds for both."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import bide

R = TypeVar("R")
PATIENCE = 60.0


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An `AsyncQueue`, or what it hands out, used as if it were of the other face."""

    def __init__(self, target: Any, loop: Loop) -> None:
        self.target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self.target, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("target", "_loop"):
            super().__setattr__(name, value)
        else:
            setattr(self.target, name, value)

    def __call__(self, *args: Any, **options: Any) -> Any:
        plain = [_unwrap(arg) for arg in args]
        return self._wrap(self.target(*plain, **options))

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._wrap(self._loop.run(self.target.__anext__()))
            except StopAsyncIteration:
                return

    def __next__(self) -> Any:
        return self._wrap(self._loop.run(self.target.__anext__()))

    def __enter__(self) -> Any:
        return self._wrap(self._loop.run(self.target.__aenter__()))

    def __exit__(self, *error: Any) -> Any:
        return self._loop.run(self.target.__aexit__(*error))

    def __repr__(self) -> str:
        return repr(self.target)

    def _wrap(self, value: Any) -> Any:
        if asyncio.iscoroutine(value):
            return self._wrap(self._loop.run(value))
        if isinstance(value, list):
            return [self._wrap(one) for one in value]
        kinds = (bide.AsyncDelivery, bide.AsyncQueue)
        if isinstance(value, kinds) or hasattr(value, "__anext__") or hasattr(value, "__aexit__"):
            return Blocking(value, self._loop)
        if callable(value) and not isinstance(value, type):
            return Blocking(value, self._loop)
        return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, Blocking):
        return value.target
    if isinstance(value, list):
        return [one.target if isinstance(one, Blocking) else one for one in value]
    return value
