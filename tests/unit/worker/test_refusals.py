"""What `bide check-deploy` says of a message is what a worker does with it."""

from dataclasses import dataclass
from typing import Any

import pytest

import bide
from bide.consuming.refusals import refusal_of
from bide.testing import ManualWorker, ScratchStore


@dataclass
class Mail:
    to: str


def made() -> bide.App:
    app = bide.App("memory://refusals")

    @app.task(queue="orders")
    def expire(order: int, *, reason: str = "unpaid") -> None: ...

    @app.task(queue="orders")
    async def charge(order: int, delivery: bide.Delivery | None = None) -> None: ...

    @app.task(queue="only")
    def only(order: int) -> None: ...

    @app.job("meetings")
    class Remind(bide.Job):
        meeting: int

        def run(self) -> None: ...

    @app.handler("mails")
    def send(mail: Mail) -> None: ...

    @app.handler("raw")
    def take_anything(body: Any) -> None: ...

    @app.handler("blind")
    def take_delivery(delivery: bide.Delivery) -> None: ...

    return app


def call(task: str, **args: Any) -> dict[str, Any]:
    return {"task": task, "args": args}


BODIES: tuple[Any, ...] = (
    call("expire", order=1),
    call("expire", order="1"),
    call("expire", order=1, reason="x"),
    call("expire", order=1, other="x"),
    call("expire"),
    call("charge", order=1),
    call("charge", order=1, delivery=None),
    call("only", order=1),
    call("gone"),
    {"task": "expire"},
    {"task": "charge", "args": {"order": 2}, "more": 1},
    {"task": 5, "args": {}},
    {"to": "ann"},
    {"to": 5},
    {"meeting": 1},
    {"meeting": "x"},
    b"raw",
    None,
    [1],
)


@pytest.mark.parametrize("job", [None, "Remind", "Gone"])
@pytest.mark.parametrize("queue", ["orders", "only", "meetings", "mails", "raw", "blind"])
def test_a_worker_handles_what_is_not_refused_and_nothing_else(queue: str, job: str | None) -> None:
    app = made()
    headers = None if job is None else {"bide-job": job}
    with ScratchStore() as store:
        opened = app.queue(queue)
        for number, body in enumerate(BODIES):
            opened.put(body, id=str(number), headers=headers)
        refused = {
            message.id: refusal_of(message, queue, app.queue_handlers) is not None
            for message in opened.scan()
        }
        assert len(refused) == len(BODIES)
        with ManualWorker(app, store, errors="collect") as worker:
            outcomes = {handled.id: handled.outcome for handled in worker.run_due()}
    for id, outcome in outcomes.items():
        assert refused[id] == (outcome in ("dead", "released")), (BODIES[int(id)], outcome)
    assert outcomes.keys() == refused.keys()
