"""Worker processes: who serves the queues, and having one replaced."""

import msgspec

from bide.model.errors import AccessDenied
from bide.model.identity import check_name
from bide.model.replies import Outcomes
from bide.observing.explanation import afollow
from bide.observing.workers import WorkerProcess, list_workers, request_stop
from bide.server import wire
from bide.server.call import Call
from bide.server.operation import Answer, Routes
from bide.server.problem import Problem

route = Routes("workers")


class Workers(msgspec.Struct):
    """The worker processes that report that they are alive."""

    workers: list[WorkerProcess]


class Requested(msgspec.Struct):
    """A process is going to be replaced."""

    holder: str


@route("listWorkers", "GET", "/v1/workers", "read")
async def list_(call: Call) -> Workers:
    """List worker processes.

    Those that serve queues of the token, with what they handle.
    """
    return Workers(await _read(call))


@route(
    "stopWorker", "POST", "/v1/workers/{holder}/stop", "admin", {202: Requested},
    problems=(404, 409),
)  # fmt: skip
async def stop(call: Call, asked: wire.Empty) -> Answer:
    """Have a worker process replaced.

    Its supervisor looks every five seconds, starts a new process, and asks the old one to end;
    it is killed if it does not. A request that no supervisor takes within a minute is void.
    """
    if not call.caller.of_all_queues:
        raise AccessDenied("a process may serve any queue: this needs a token for all queues")
    holder = check_name(call.part("holder"), "holder")
    found = [one for one in await _read(call) if one.holder == holder]
    if not found:
        raise Problem("not-found", f"no worker {holder!r} reports that it is alive")
    stops = found[0].stops
    if stops is None:
        raise Problem("conflict", f"{holder} has no supervisor that you may ask to replace it")
    await call.ask(Outcomes, request_stop(call.caller.full(stops), holder, call.actor))
    return Answer(202, Requested(holder))


async def _read(call: Call) -> list[WorkerProcess]:
    registers = await call.service.registers(call.caller)
    steps = list_workers(registers, call.service.clock.now(), call.caller.own)
    return await afollow(steps, lambda command: call.service.lane.acall(command, call.service))
