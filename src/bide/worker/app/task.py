"""Tasks: functions that messages call."""

from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from bide.consuming.handler import Wrapping, is_coroutine_function, name_of, seconds_of
from bide.consuming.handling import Handler, Handling
from bide.consuming.parameters import TaskParameters
from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument
from bide.model.message import Message, NewMessage
from bide.model.repeat import Repeat
from bide.model.replies import Outcome
from bide.model.times import Duration, Moment
from bide.model.window import Window
from bide.observing.explanation import Explanation
from bide.queue.aio import AsyncQueue
from bide.queue.arguments import OnConflict
from bide.queue.sync import Queue
from bide.worker.app.open_queues import OpenQueues
from bide.worker.app.registrations import Registrations

P = ParamSpec("P")
R = TypeVar("R")

Call = tuple[Any, ...] | Mapping[str, Any]
"""The arguments of one call: by position, or by name."""


class Task(Wrapping, Generic[P, R]):
    """A function that messages call, made by `App.task`. Calling it runs it here and now.

    Its arguments travel as `{"task": name, "args": {parameter: value}}`: each value has the type
    that its parameter is annotated with, as bodies of handlers have.

    Args:
        app: the app that it belongs to.
        open_queues: opens the queue of its messages.
        function: is called.
        name: names the task in messages.
        queue: of its messages.
        parameters: those of the function.
        backoff: the delays after errors, and the number of attempts.

    Example:
        >>> import bide
        >>> app = bide.App("memory://shop")
        >>> @app.task
        ... def expire(order: int, *, reason: str = "unpaid") -> None:
        ...     print("order", order, "is", reason)
        >>> print(expire.later("30m", id="order-42").put(42).state)
        delayed
        >>> bool(expire.cancel("order-42"))
        True
        >>> expire(42)
        order 42 is unpaid
    """

    def __init__(
        self,
        app: Registrations,
        open_queues: OpenQueues,
        function: Callable[P, R],
        name: str,
        queue: str,
        parameters: TaskParameters,
        backoff: Backoff,
    ) -> None:
        self.app = app
        """The app that it belongs to."""
        self.name = name
        """Names the task in messages."""
        self.parameters = parameters
        """What it takes."""
        self.queue_name = queue
        """Names the queue of its messages."""
        self.backoff = backoff
        """The delays after errors, and the number of attempts."""
        self._open_queues = open_queues
        self._function = function
        self._at_once = self.later()
        """What `put` and `message` use: calls that are due at once, with the usual options."""
        # Not what its `__dict__` has: its attribute `name` would replace that of the task.
        update_wrapper(self, function, updated=())

    # `self` is by position only, so that a function may have a parameter of this name.

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self._function(*args, **kwargs)

    def __reduce__(self) -> str:
        """Pickle it by its name in its module, as functions are."""
        return str(getattr(self, "__qualname__", self.name))

    def __repr__(self) -> str:
        return f"<Task {self.name}{self.parameters} of queue {self.queue_name!r}>"

    @property
    def queue(self) -> Queue:
        """The queue of its messages; the app opens it."""
        return self._open_queues.queue(self.queue_name)

    @property
    def async_queue(self) -> AsyncQueue:
        """The same for event loops."""
        return self._open_queues.async_queue(self.queue_name)

    def later(
        self,
        delay: Duration | None = None,
        *,
        at: Moment | str | None = None,
        timezone: str | None = None,
        id: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_conflict: OnConflict | Literal["raise"] = "keep",
        if_version: str | None = None,
        latest: Duration | None = None,
        spread: Duration | None = None,
        repeat: Repeat | None = None,
        window: Window | None = None,
        within: object = None,
    ) -> "Later[P]":
        """Say when and how the function is to be called; `put` on what it returns says with what.

        Args:
            delay: how long from now: seconds, a `timedelta`, or "1h30m". At once by default.
            at: the time instead: an aware `datetime`, or Unix seconds.
            timezone: of a local date, such as "Europe/Paris": `at` is then a text such as
                "2027-03-28 09:00", or a naive `datetime`.
            id: your own name for the call, to cancel or move it by; random by default.
            attempts: how often it is tried at most; by default as the task's `retry` says.
            priority: 0 to 255; among due messages, higher goes first.
            expires: how long after its due time the call is still worth making.
            group: a name that several messages share, to cancel them together.
            headers: text that travels beside the arguments.
            on_conflict: if the id exists: "keep" the message, "replace" it unless a worker holds
                it, or "raise".
            if_version: with "replace": only the message that you saw, by its `Message.version`.
            latest: with "replace", an id and `delay`: each put of the id moves its due time, but
                never to later than this after the first put since the id was free (debounce).
            spread: how long after the due time it is due at the latest: at a time within this span
                that is always the same for the id.
            repeat: by which rule it repeats: `bide.Cron` or `bide.Every`.
            window: in which hours it is made: a `bide.Window`.
            within: your connection to the store's own database; the call joins its transaction. If
                the store is elsewhere, it waits in an outbox in that database.

        Example:
            >>> import bide
            >>> app = bide.App("memory://later")
            >>> @app.task(queue="reminders")
            ... def remind(user: int) -> None: ...
            >>> print(remind.later("1d", id="remind-7", group="user:7").put(7).id)
            remind-7
        """
        options = {
            "delay": delay,
            "at": at,
            "timezone": timezone,
            "id": id,
            "priority": priority,
            "expires": expires,
            "attempts": self.backoff.attempts if attempts is None else attempts,
            "group": group,
            "headers": headers,
            "latest": latest,
            "spread": spread,
            "repeat": repeat,
            "window": window,
        }
        put_options = {"on_conflict": on_conflict, "if_version": if_version, "within": within}
        return Later(self, options, put_options)

    def put(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        """Put a message that calls the function with these arguments, due at once.

        Returns:
            The outcome: `id`, `due`, and whether it was stored.

        Raises:
            InvalidArgument: the function cannot be called with them.
            StoreError: the store failed.
        """
        return self._at_once.put(*args, **kwargs)

    async def aput(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        """Async form of `put`."""
        return await self._at_once.aput(*args, **kwargs)

    def put_many(self, calls: Iterable[Call]) -> list[Outcome]:
        """Put many calls with one commit, each a tuple of arguments or a mapping by name.

        Example:
            >>> import bide
            >>> app = bide.App("memory://many")
            >>> @app.task
            ... def greet(name: str, *, loud: bool = False) -> None: ...
            >>> [outcome.done for outcome in greet.put_many([("Ann",), {"name": "Bob"}])]
            [True, True]
        """
        return self._at_once.put_many(calls)

    async def aput_many(self, calls: Iterable[Call]) -> list[Outcome]:
        """Async form of `put_many`."""
        return await self._at_once.aput_many(calls)

    def message(self, /, *args: P.args, **kwargs: P.kwargs) -> NewMessage:
        """Return the message of a call, for `Queue.put_many` and sources."""
        return self._at_once.message(*args, **kwargs)

    # What is done with calls that were put: the same as on the queue.

    def cancel(
        self,
        id: str,
        *,
        if_due: Moment | None = None,
        if_version: str | None = None,
        running: bool = False,
        wait: Duration | None = None,
        within: object = None,
    ) -> Outcome:
        """Cancel a call by its id.

        Args:
            id: of the call.
            if_due: only if this is still its due time.
            if_version: only the version that you saw, by its `Message.version`.
            running: also while it runs: an async function is cancelled, a plain one finds
                `delivery.lost` set and gets `StopRequested` at its next call of bide. Unless it
                still returns, the call counts as cancelled.
            wait: of one that is running: how long to wait until it has ended.
            within: your connection to the store's own database; the cancel joins its transaction.
                If the store is elsewhere, the cancel waits in an outbox in that database.

        Returns:
            The outcome: true if no worker makes the call, now or later; else it says where it is.
            One that is "stopping", or waits in an outbox, is neither true nor false.
        """
        return self.queue.cancel(
            id, if_due=if_due, if_version=if_version, running=running, wait=wait, within=within
        )

    async def acancel(
        self,
        id: str,
        *,
        if_due: Moment | None = None,
        if_version: str | None = None,
        running: bool = False,
        wait: Duration | None = None,
        within: object = None,
    ) -> Outcome:
        """Async form of `cancel`."""
        outcome: Outcome = await self.async_queue.cancel(
            id, if_due=if_due, if_version=if_version, running=running, wait=wait, within=within
        )
        return outcome

    def reschedule(
        self,
        id: str,
        delay: Duration | None = None,
        *,
        at: Moment | str | None = None,
        timezone: str | None = None,
        if_due: Moment | None = None,
        if_version: str | None = None,
        within: object = None,
    ) -> Outcome:
        """Change when a call is due that no worker has begun.

        Args:
            id: of the call.
            delay: how long from now until it is due.
            at: the due time instead: an aware `datetime`, or Unix seconds.
            timezone: of a local date, such as "Europe/Paris": `at` is then a text such as
                "2027-03-28 09:00", or a naive `datetime`; not with `within`.
            if_due: only if this is still its due time.
            if_version: only the version that you saw, by its `Message.version`.
            within: your connection to the store's own database; the change joins its transaction.
                If the store is elsewhere, it waits in an outbox in that database.

        Returns:
            The outcome: true if it was changed, else it says where the call is.
        """
        return self.queue.reschedule(
            id,
            delay=delay,
            at=at,
            timezone=timezone,
            if_due=if_due,
            if_version=if_version,
            within=within,
        )

    async def areschedule(
        self,
        id: str,
        delay: Duration | None = None,
        *,
        at: Moment | str | None = None,
        timezone: str | None = None,
        if_due: Moment | None = None,
        if_version: str | None = None,
        within: object = None,
    ) -> Outcome:
        """Async form of `reschedule`."""
        outcome: Outcome = await self.async_queue.reschedule(
            id,
            delay=delay,
            at=at,
            timezone=timezone,
            if_due=if_due,
            if_version=if_version,
            within=within,
        )
        return outcome

    def get(self, id: str) -> Message | None:
        """Read the message of a call; `None` if there is none with this id."""
        return self.queue.get(id)

    async def aget(self, id: str) -> Message | None:
        """Async form of `get`."""
        return await self.async_queue.get(id)

    def explain(self, id: str) -> Explanation:
        """Tell why a call is where it is: when it is due, what it waits for, or who runs it."""
        return self.queue.explain(id)

    async def aexplain(self, id: str) -> Explanation:
        """Async form of `explain`."""
        return await self.async_queue.explain(id)

    def result(self, id: str, *, wait: Duration | None = None) -> Any:
        """Return what a call has returned, decoded into the annotated type.

        See `Queue.result`; the queue needs `result_ttl`.

        Raises:
            NotEnded: the call has not ended.
            NotAcked: the call died, expired, or was cancelled.
            NotRemembered: nothing is known of it.
        """
        return self.queue.result(id, wait=wait, type=self.parameters.result)

    async def aresult(self, id: str, *, wait: Duration | None = None) -> Any:
        """Async form of `result`."""
        return await self.async_queue.result(id, wait=wait, type=self.parameters.result)

    def handler(self, timeout: Duration | None, warn_after: Duration | None) -> Handler:
        """Return the handler that calls the function for a message."""
        return Handler(
            name_of(self._function),
            self.handle,
            is_coroutine_function(self._function),
            timeout=seconds_of(timeout),
            warn_after=seconds_of(warn_after, "warn_after"),
            retry=self.backoff,
            check=self.parameters.decode,
            takes=str(self.parameters),
        )

    def handle(self, handling: Handling) -> Any:
        """Call the function for a message; of an async one, return what is to be awaited.

        Raises:
            Unfit: the function cannot be called with the arguments of the message.
        """
        args, kwargs = self.parameters.arguments_of(handling)
        return self._function(*args, **kwargs)


class Later(Generic[P]):
    """When and how a task is called; `put` says with which arguments. Made by `Task.later`."""

    def __init__(
        self, task: Task[P, Any], options: dict[str, Any], put_options: dict[str, Any]
    ) -> None:
        self._task = task
        self._options = options
        """The options of the message."""
        self._put_options = put_options
        """The options of the put, which a message does not have."""
        self._all_options = options | put_options

    def __repr__(self) -> str:
        changed = {name: value for name, value in self._options.items() if value is not None}
        return f"<Later of {self._task!r}: {changed}>"

    def put(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        """Put the call with these arguments; see `Task.put`."""
        return self._task.queue.put(self._body(args, kwargs), **self._all_options)

    async def aput(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        """Async form of `put`."""
        body = self._body(args, kwargs)
        outcome: Outcome = await self._task.async_queue.put(body, **self._all_options)
        return outcome

    def put_many(self, calls: Iterable[Call]) -> list[Outcome]:
        """Put many calls with one commit; see `Task.put_many`. Each gets an id of its own."""
        return self._task.queue.put_many(self._messages(calls), **self._put_many_options())

    async def aput_many(self, calls: Iterable[Call]) -> list[Outcome]:
        """Async form of `put_many`."""
        messages = self._messages(calls)
        outcomes: list[Outcome] = await self._task.async_queue.put_many(
            messages, **self._put_many_options()
        )
        return outcomes

    def message(self, /, *args: P.args, **kwargs: P.kwargs) -> NewMessage:
        """Return the message of the call.

        Raises:
            InvalidArgument: the function cannot be called with these arguments.
        """
        return NewMessage(self._body(args, kwargs), **self._options)

    def _body(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a call.

        Raises:
            InvalidArgument: the function cannot be called with these arguments.
        """
        return {"task": self._task.name, "args": self._task.parameters.bind(args, kwargs)}

    def _messages(self, calls: Iterable[Call]) -> list[NewMessage]:
        """Return a message for each call.

        Raises:
            InvalidArgument: these options have an id, or a call is not valid.
        """
        if self._options["id"] is not None:
            raise InvalidArgument(
                f"id={self._options['id']!r} is for one call, and put_many puts several; leave it "
                "out, or put a list of task.later(id=...).message(...) into the queue"
            )
        messages = []
        for call in calls:
            if isinstance(call, Mapping):
                messages.append(NewMessage(self._body((), call), **self._options))
            elif isinstance(call, tuple):
                messages.append(NewMessage(self._body(call, {}), **self._options))
            else:
                raise InvalidArgument(
                    f"{call!r} is neither a tuple of arguments nor a mapping of them by name; "
                    f"write ({call!r},) for a call with this one"
                )
        return messages

    def _put_many_options(self) -> dict[str, Any]:
        """Return the options of a put of many calls.

        Raises:
            InvalidArgument: one of them is for a single call.
        """
        options = dict(self._put_options)
        if options.pop("if_version") is not None or options["on_conflict"] == "raise":
            raise InvalidArgument('if_version= and on_conflict="raise" are for one call')
        return options
