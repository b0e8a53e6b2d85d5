"""Handlers whose effect and whose ack are committed together: those with `within=`."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from typing import Any

from bide.consuming.handler import check_takes, checked_result
from bide.consuming.handling import Handler, Handling
from bide.consuming.settling import encode_returned
from bide.model.errors import InvalidArgument

Transaction = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
"""A block that yields a connection or a session. Its end commits, an exception rolls back."""

Within = Callable[[], Transaction]
"""Opens a transaction: `engine.begin` and `sessionmaker.begin` of SQLAlchemy, `pool.connection` of
psycopg, or a function with `contextlib.contextmanager`."""


def in_transaction(handler: Handler, within: Within) -> Handler:
    """Return a handler that runs in a transaction of its own, in which the message is acked.

    Args:
        handler: the handler.
        within: opens the transaction; one that `async with` takes for an async handler.

    Raises:
        InvalidArgument: `within` is no function without arguments.
    """
    name = handler.name
    if not callable(within):
        raise InvalidArgument(
            f"within= of {name} must be a function that opens a transaction, such as "
            f"engine.begin, not {type(within).__name__}"
        )
    check_takes(within, 0, f"nothing, as within= of {name}")

    def open_transaction(method: str, word: str) -> Any:
        transaction = within()
        if not hasattr(type(transaction), method):
            raise TypeError(
                f"within= of {name} returned {type(transaction).__name__}, and the handler needs "
                f"a context manager that `{word}` takes"
            )
        return _WholeTransaction(transaction, name)

    def in_thread(handling: Handling) -> Any:
        with open_transaction("__enter__", "with") as connection:
            _give_connection(handling, connection)
            returned = checked_result(handler.call(handling), name)
            handling.settle_for_good(_result(handling, returned), connection)
        return returned

    async def on_loop(handling: Handling) -> Any:
        async with open_transaction("__aenter__", "async with") as connection:
            _give_connection(handling, connection)
            returned = checked_result(await handler.call(handling), name)
            await handling.settle_for_good(_result(handling, returned), connection)
        return returned

    return replace(handler, call=on_loop if handler.is_async else in_thread)


class _WholeTransaction:
    """A transaction whose end hides nothing that its handler raises: it may have rolled back.

    Args:
        transaction: what `within` has returned.
        name: of the handler, for the error.
    """

    def __init__(self, transaction: Any, name: str) -> None:
        self._transaction = transaction
        self._name = name

    def __enter__(self) -> Any:
        return self._transaction.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._check(self._transaction.__exit__(kind, error, trace), error)

    async def __aenter__(self) -> Any:
        return await self._transaction.__aenter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._check(await self._transaction.__aexit__(kind, error, trace), error)

    def _check(self, is_swallowed: Any, error: BaseException | None) -> None:
        """Raise an error instead of one that the transaction has swallowed.

        What is no `Exception`, such as a cancellation, is raised in any case.
        """
        if is_swallowed and isinstance(error, Exception):
            raise RuntimeError(
                f"within= of {self._name} has swallowed the {type(error).__name__} of its handler, "
                "so nothing was acked; let it pass the exception on"
            ) from error


def _give_connection(handling: Handling, connection: object) -> None:
    """Give a delivery the connection of its transaction.

    Raises:
        TypeError: the user's context manager has yielded `None`.
    """
    if connection is None:
        raise TypeError(
            f"within= of {handling.handler.name} yields nothing; it must yield the connection or "
            "session whose transaction its end commits"
        )
    handling.connection = connection


def _result(handling: Handling, returned: Any) -> Any:
    """Return the result to ack with; what cannot be stored is left out, and logged."""
    handling.returned = returned
    if returned is None or not handling.keeps_result:
        return None
    return returned if encode_returned(handling) else None
