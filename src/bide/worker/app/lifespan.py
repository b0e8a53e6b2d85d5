"""The lifespan of an app: opens and closes what its handlers need, such as a connection pool."""

from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from typing import Any

from bide.consuming.handler import name_of
from bide.model.errors import InvalidArgument

Lifespan = Callable[[Any], AbstractAsyncContextManager[object] | AbstractContextManager[object]]
"""Takes the app."""

SHAPE = (
    "a function that takes the app and yields once, under @contextlib.contextmanager, or "
    "@contextlib.asynccontextmanager if it is async"
)


@asynccontextmanager
async def entered(lifespan: Lifespan | None, app: object) -> AsyncIterator[None]:
    """Enter the lifespan of an app, plain or async, if it has one.

    Raises:
        InvalidArgument: the lifespan did not return a context manager.
    """
    manager: object = nullcontext() if lifespan is None else lifespan(app)
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager:
            yield
    elif isinstance(manager, AbstractContextManager):
        with manager:
            yield
    else:
        raise InvalidArgument(
            f"lifespan {name_of(lifespan)} returned {manager!r}, which is not a context manager; "
            f"let it be {SHAPE}"
        )
