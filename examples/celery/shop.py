"""A shop on Celery whose delayed tasks wait in bide.

Only the call of `install` is new. An order is cancelled after half an hour unless it is paid; the
payment revokes the task, and the broker never sees it.
"""

import os
import sqlite3
from contextlib import closing
from typing import Any

from celery import Celery

from bide.contrib.celery import install

app = Celery("shop", broker=os.environ.get("CELERY_BROKER_URL", "redis://"))
install(app)  # into the store that BIDE_URL names

PAY_WITHIN = float(os.environ.get("PAY_WITHIN", 30 * 60))
"""Seconds."""


def execute(statement: str, *values: Any) -> list[Any]:
    """Execute a statement on the database of the shop, and return what it gives."""
    with closing(sqlite3.connect(os.environ.get("SHOP_DB", "shop.db"), timeout=30)) as connection:
        with connection:
            return connection.execute(statement, values).fetchall()


def open_shop() -> None:
    """Create the table of orders."""
    execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT, charged INT)")


@app.task  # type: ignore[untyped-decorator]
def cancel_order(order: str) -> None:
    """Cancel an order that is still unpaid; a second call changes nothing."""
    execute("UPDATE orders SET state = 'cancelled' WHERE id = ? AND state = 'unpaid'", order)


@app.task(bind=True, max_retries=5)  # type: ignore[untyped-decorator]
def charge(self: Any, order: str) -> None:
    """Charge a card; the bank fails at first, and the next try waits in bide, too."""
    execute("UPDATE orders SET charged = charged + 1 WHERE id = ?", order)
    if self.request.retries == 0:
        raise self.retry(countdown=0.2, exc=ConnectionError("the bank does not answer"))
    execute("UPDATE orders SET state = 'shipped' WHERE id = ?", order)


def place(order: str) -> None:
    """Take an order, which must be paid in time."""
    execute("INSERT INTO orders VALUES (?, 'unpaid', 0)", order)
    cancel_order.apply_async((order,), task_id=f"cancel-{order}", countdown=PAY_WITHIN)


def pay(order: str) -> None:
    """Take the payment: the task that would have cancelled the order is gone."""
    execute("UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'unpaid'", order)
    app.AsyncResult(f"cancel-{order}").revoke()
    charge.delay(order)


def state(order: str) -> str:
    """Return the state of an order."""
    [(found,)] = execute("SELECT state FROM orders WHERE id = ?", order)
    return str(found)
