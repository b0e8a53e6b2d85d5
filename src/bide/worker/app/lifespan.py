"""The lifespan of an app: opens and closes what its handlers need, such as a connection pool."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
)
from typing import TYPE_CHECKING, Any

from bide.consuming.handler import check_takes, name_of
from bide.model.errors import InvalidArgument

if TYPE_CHECKING:
    from bide.worker.app.app import App

Lifespan = Callable[["App"], AbstractAsyncContextManager[object] | AbstractContextManager[object]]

SHAPE = (
    "a function that takes the app and yields once, under @contextlib.contextmanager, or "
    "@contextlib.asynccontextmanager if it is async"
)


def checked_lifespan(function: Any) -> Lifespan | None:
    """Check a lifespan, as far as possible before it is called, and return it.

    Raises:
        InvalidArgument: it is not a lifespan.
    """
    if function is not None:
        check_takes(function, 1, f"the app; a lifespan is {SHAPE}")
        kinds = inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction
        if any(bare(function) for bare in kinds):
            raise InvalidArgument(f"lifespan={name_of(function)} must be {SHAPE}")
    checked: Lifespan | None = function
    return checked


@asynccontextmanager
async def lifespan(app: "App") -> AsyncIterator[None]:
    """Enter the lifespan of an app, plain or async, if it has one.

    Raises:
        InvalidArgument: the lifespan did not return a context manager.
    """
    if app.lifespan is None:
        yield
        return
    manager: object = app.lifespan(app)
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager:
            yield
    elif isinstance(manager, AbstractContextManager):
        with manager:
            yield
    else:
        raise InvalidArgument(
            f"lifespan {name_of(app.lifespan)} returned {manager!r}, which is no context manager; "
            f"let it be {SHAPE}"
        )
