"""Commands that depend on the replies before them, written once for threads and for tasks."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeVar, overload

import msgspec

from bide.model.commands import Command, Find, ListEnded, Scan
from bide.model.message import Message
from bide.model.replies import EndedPage, Found, Outcome, Page

R = TypeVar("R")
C = TypeVar("C")
L = TypeVar("L", bound=Scan | ListEnded)

Steps = Generator[Command, Any, R]
"""Yields commands, receives their replies or raises why there is none, and returns a result."""

LongSteps = Generator[Command | None, Any, R]
"""Steps that compute for long: they also yield `None`, where other tasks may run."""


@overload
def run_steps(steps: Generator[C, Any, R], ask: Callable[[C], Any]) -> R: ...
@overload
def run_steps(steps: LongSteps[R], ask: Callable[[Command], Any]) -> R: ...
def run_steps(steps: Generator[Any, Any, R], ask: Callable[[Any], Any]) -> R:
    """Execute each command of some steps with `ask`; return their result."""
    try:
        command = next(steps)
        while True:
            try:
                reply = None if command is None else ask(command)
            except BaseException as error:  # noqa: BLE001  (the steps raise it, unless they go on)
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as done:
        result: R = done.value
        return result


async def _pause() -> None:
    """Let other tasks run."""
    await asyncio.sleep(0)


@overload
async def arun_steps(steps: Generator[C, Any, R], ask: Callable[[C], Awaitable[Any]]) -> R: ...
@overload
async def arun_steps(
    steps: LongSteps[R],
    ask: Callable[[Command], Awaitable[Any]],
    pause: Callable[[], Awaitable[None]] = _pause,
) -> R: ...
async def arun_steps(
    steps: Generator[Any, Any, R],
    ask: Callable[[Any], Awaitable[Any]],
    pause: Callable[[], Awaitable[None]] = _pause,
) -> R:
    """Async form of `run_steps`.

    Args:
        steps: the steps.
        ask: executes a command.
        pause: is called where other tasks may run.
    """
    try:
        command = next(steps)
        while True:
            try:
                reply = await (pause() if command is None else ask(command))
            except BaseException as error:  # noqa: BLE001  (the steps raise it, unless they go on)
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as done:
        result: R = done.value
        return result


def find_all(queue: str, ids: Iterable[str]) -> Steps[dict[str, Message]]:
    """Return those of the messages that exist, by id; a reply of limited size has the first."""
    messages, remaining = dict[str, Message](), list(ids)
    while remaining:
        reply: Found = yield Find(queue, remaining)
        messages |= {message.id: message for message in reply.messages if message is not None}
        remaining = remaining[len(reply.messages) :]
    return messages


def outcomes_of(*commands: Command) -> Steps[list[Outcome]]:
    """Execute commands; return all their outcomes."""
    outcomes: list[Outcome] = []
    for command in commands:
        outcomes += (yield command).outcomes
    return outcomes


def following(scan: L, page: Page | EndedPage) -> L | None:
    """Return the command that reads the next page; `None` if there is none."""
    return None if page.cursor is None else msgspec.structs.replace(scan, cursor=page.cursor)


def first_of(scan: Scan | None, count: int) -> Steps[list[Message]]:
    """Return the first `count` messages of a scan."""
    messages: list[Message] = []
    while scan is not None and len(messages) < count:
        page: Page = yield scan
        messages += page.messages
        scan = following(scan, page)
    return messages[:count]
