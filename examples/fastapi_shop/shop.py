"""A shop with an HTTP API: an order that is not paid in time is cancelled.

The queue is in the shop's own database, so an order and its timeout are committed together. The
worker runs in the web server's process.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import bide
from bide.contrib.fastapi import health, lifespan, queue

DATABASE = os.environ.get("SHOP_DATABASE", "sqlite+aiosqlite:///shop.db")
STORE = os.environ.get("BIDE_URL", "sqlite:///shop.db")
PAY_WITHIN = os.environ.get("PAY_WITHIN", "30m")


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order: unpaid, and then either paid or cancelled."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    state: Mapped[str] = mapped_column(default="unpaid")


class NewOrder(BaseModel):
    """What a customer sends."""

    article: str = Field(min_length=1, max_length=100)


class Deadline(BaseModel):
    """The body of a message: the order that must be paid by now."""

    order: int


Session = async_sessionmaker(expire_on_commit=False)
jobs = bide.App(STORE)


@jobs.handler("order-timeouts")
async def time_out(deadline: Deadline) -> None:
    """Cancel an unpaid order. Idempotent: the second call finds no unpaid order."""
    async with Session.begin() as session:
        await _leave_unpaid(session, deadline.order, "cancelled")


@asynccontextmanager
async def open_shop(app: FastAPI) -> AsyncIterator[Any]:
    """Open the database, then the queues and the worker; close them in reverse."""
    async with AsyncExitStack() as stack:
        engine = create_async_engine(DATABASE)
        stack.push_async_callback(engine.dispose)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        Session.configure(bind=engine)
        yield await stack.enter_async_context(lifespan(jobs)(app))


async def database() -> AsyncIterator[AsyncSession]:
    """Provide a session whose transaction is committed before the answer is sent."""
    async with Session.begin() as session:
        yield session


Database = Annotated[AsyncSession, Depends(database, scope="function")]
Timeouts = Annotated[bide.AsyncQueue, Depends(queue("order-timeouts"))]

app = FastAPI(title="Shop", lifespan=open_shop)
app.get("/health")(health)


@app.post("/orders", status_code=201)
async def place(new: NewOrder, session: Database, timeouts: Timeouts) -> dict[str, int]:
    """Place an order. Its timeout is in the same transaction: both are committed, or neither."""
    order = Order(article=new.article)
    session.add(order)
    await session.flush()  # now it has its id
    await timeouts.put(
        Deadline(order=order.id), delay=PAY_WITHIN, id=f"order-{order.id}", within=session
    )
    return {"order": order.id}


@app.post("/orders/{order}/payment")
async def pay(order: int, session: Database, timeouts: Timeouts) -> dict[str, bool]:
    """Pay an order, unless it has timed out."""
    if not await _leave_unpaid(session, order, "paid"):
        raise HTTPException(409, "the order is paid or cancelled, or there is none")
    cancelled = await timeouts.cancel(f"order-{order}", within=session)
    return {"timeout_cancelled": bool(cancelled)}


@app.get("/orders/{order}")
async def show(order: int, session: Database, timeouts: Timeouts) -> Any:
    """Show an order, and until when it must be paid."""
    found = await session.get(Order, order)
    if found is None:
        raise HTTPException(404, "there is no such order")
    timeout = await timeouts.get(f"order-{order}")
    return {"state": found.state, "pay_until": timeout and timeout.due_at}


async def _leave_unpaid(session: AsyncSession, order: int, state: str) -> bool:
    """Move an unpaid order to another state. At most one caller succeeds."""
    moved = await session.scalar(
        update(Order)
        .where(Order.id == order, Order.state == "unpaid")
        .values(state=state)
        .returning(Order.id)
    )
    return moved is not None
