"""What Prometheus reads: the depth of every queue, and what the server has answered."""

import asyncio
from collections.abc import Iterator

import msgspec

from bide.model.commands import Count
from bide.model.replies import Counts
from bide.server.access import Caller
from bide.server.service import Service

__all__ = ["KIND", "exposition"]

KIND = "text/plain; version=0.0.4; charset=utf-8"


async def exposition(service: Service, caller: Caller) -> bytes:
    """Return the figures of a caller's queues, and of this process of the server."""
    names = await service.names(caller)
    found = await asyncio.gather(*[service.ask(Counts, Count(caller.full(name))) for name in names])
    queues = list(zip(names, found, strict=True))
    lines = [*_depths(queues), *_flows(queues), *_ages(queues, service.clock.now())]
    if caller.namespace is None:  # what others ask for is no business of a namespace
        lines += _requests(service)
    return ("\n".join(lines) + "\n").encode()


_Queues = list[tuple[str, Counts]]


def _depths(queues: _Queues) -> Iterator[str]:
    yield "# HELP bide_messages Messages in a queue, by state."
    yield "# TYPE bide_messages gauge"
    for name, counts in queues:
        for state, count in msgspec.structs.asdict(counts.sizes).items():
            yield f'bide_messages{{queue="{name}",state="{state}"}} {count}'
    yield "# HELP bide_queue_paused Whether a queue is paused."
    yield "# TYPE bide_queue_paused gauge"
    for name, counts in queues:
        yield f'bide_queue_paused{{queue="{name}"}} {int(counts.paused)}'


def _flows(queues: _Queues) -> Iterator[str]:
    yield "# HELP bide_messages_total What has happened to messages of a queue."
    yield "# TYPE bide_messages_total counter"
    for name, counts in queues:
        for event, count in msgspec.structs.asdict(counts.flow).items():
            yield f'bide_messages_total{{queue="{name}",event="{event}"}} {count}'


def _ages(queues: _Queues, now: int) -> Iterator[str]:
    yield "# HELP bide_oldest_due_seconds For how long the oldest due message has waited."
    yield "# TYPE bide_oldest_due_seconds gauge"
    for name, counts in queues:
        late = 0 if counts.oldest is None else max(0, now - counts.oldest)
        yield f'bide_oldest_due_seconds{{queue="{name}"}} {late / 1000}'


def _requests(service: Service) -> Iterator[str]:
    yield "# HELP bide_http_requests_total Requests that this process answered."
    yield "# TYPE bide_http_requests_total counter"
    for (operation, status), count in sorted(service.requests.items()):
        labels = f'operation="{operation}",status="{status}"'
        yield f"bide_http_requests_total{{{labels}}} {count}"
    yield "# HELP bide_http_request_seconds_total How long they took."
    yield "# TYPE bide_http_request_seconds_total counter"
    for operation, seconds in sorted(service.seconds.items()):
        yield f'bide_http_request_seconds_total{{operation="{operation}"}} {seconds:.6f}'
    yield "# HELP bide_http_waiting_claims Claims that wait for a message."
    yield "# TYPE bide_http_waiting_claims gauge"
    yield f"bide_http_waiting_claims {service.waiting}"
