"""A shop whose orders time out: a web application (`web`), and what workers run (`app`)."""

from fastapi import FastAPI

import bide
from bide.contrib.fastapi import health, lifespan

app = bide.App()  # the store: BIDE_URL
web = FastAPI(lifespan=lifespan(app, worker=False))
web.get("/health")(health)


@app.task
async def expire(order: int) -> None:
    """Cancel an order that was not paid in time."""
    print("order", order, "has timed out")


@web.put("/orders/{order}", status_code=201)
async def place(order: int, delay: str = "30m") -> dict[str, str | None]:
    """Place an order."""
    outcome = await expire.later(delay, id=f"order-{order}").aput(order)
    return {"state": outcome.state}


@web.post("/orders/{order}/paid")
async def pay(order: int) -> dict[str, bool]:
    """Pay an order; false if it has timed out."""
    return {"in_time": bool(await expire.acancel(f"order-{order}"))}
