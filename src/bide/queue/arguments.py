"""Check single arguments, with errors that name the fix; name this process and its user."""

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import msgspec

from bide.model.commands import Command
from bide.model.ended import ENDINGS, Ending, encode_result
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name, plain_text, text_of
from bide.model.limits import MAX_COUNT, check_whole
from bide.model.message import MAX_PROGRESS_TEXT, STATES, Item, NewMessage, Progress, State
from bide.model.times import Duration, Moment, interval, milliseconds

OnConflict = Literal["keep", "replace"]

_VERSION = re.compile("[0-9a-f]{16}")


def whole_message(body: Any) -> NewMessage | None:
    """Return the message that a body is by itself: a `NewMessage`, or a job; `None` if it is none.

    Raises:
        InvalidArgument: the job was not registered.
    """
    if isinstance(body, NewMessage):
        return body
    if not isinstance(body, msgspec.Struct):
        return None
    # Jobs are known by these two methods: their class is in a part of bide that uses this one.
    to_message = getattr(body, "message", None)
    if not (callable(to_message) and callable(getattr(body, "due", None))):
        return None
    message: NewMessage = to_message()
    return message


def refuse_whole(body: msgspec.Struct) -> None:
    """Refuse a body that is a whole message: its due time and id would be lost."""
    if whole_message(body) is not None:
        raise InvalidArgument(
            f"{type(body).__name__} has its own due time and id, and cannot be the body of "
            "another message; put it alone: put(message) or put_many([message])"
        )


def checked_version(value: str) -> str:
    """Return a valid version of a message."""
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        raise InvalidArgument(
            f"if_version={value!r} is not a version; give the version of the message you read"
        )
    return plain_text(value)


def headers_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that every store can hold."""
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers must map str to str, not be {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"headers[{name!r}] must map a str to a str, not {value!r}")
        if text_of(name) != name or text_of(value) != value:
            raise InvalidArgument(f"headers[{name!r}] is not valid Unicode text: {value!r}")
    return {plain_text(name): plain_text(value) for name, value in headers.items()}


def lasting(expires: Duration) -> int:
    """Return how long after its due time a message expires, in milliseconds."""
    ms = milliseconds(expires, "expires")
    if not ms:
        raise InvalidArgument("expires must be longer than 0; leave it out for 'never'")
    return ms


def settings_of(**given: Any) -> dict[str, int | str]:
    """Return the settings that are given, as `Configure` takes them.

    Raises:
        InvalidArgument: one is not valid.
    """
    settings: dict[str, int | str] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name == "overdue":
            settings[name] = overdue_of(value)
        elif name.endswith("limit"):
            settings[name] = check_whole(value, name, 0, MAX_COUNT)
        elif name.endswith("rate"):
            settings[name] = interval(value, name)
        else:
            settings[name] = milliseconds(value, name)
    return settings


def overdue_of(value: Any) -> str:
    """Return a plan for what is overdue as a queue has it; empty: none.

    Raises:
        InvalidArgument: the value is not a plan.
    """
    if value in (0, "0", ""):
        return ""
    from bide.model.recovery import plan_of  # here: most queues have none

    return plan_of(value).text


def latest_of(message: NewMessage) -> int:
    """Return `latest` of a message that has it, in milliseconds."""
    if message.id is None or message.delay is None:
        raise InvalidArgument(
            "latest= bounds how long puts of one id delay a message: it needs an id, delay= and "
            'on_conflict="replace"'
        )
    assert message.latest is not None
    return milliseconds(message.latest, "latest")


def check_latest(items: Sequence[Item], on_conflict: str, if_version: str | None = None) -> None:
    """Check that puts with `latest` replace, and do so unconditionally."""
    if on_conflict == "replace" and if_version is None:
        return
    for item in items:
        if item.latest is not None:
            raise InvalidArgument(
                f"latest of {item.id!r} is for puts that replace the message of their id: add "
                'on_conflict="replace", and leave out if_version'
            )


def check_state(state: str) -> State:
    """Return a text as the state that it names.

    Raises:
        InvalidArgument: no state has this name.
    """
    if state not in STATES:
        raise InvalidArgument(f"state={state!r} must be one of {', '.join(STATES)}")
    return STATES[STATES.index(state)]  # the same text, with the type `State`


def check_ending(how: str) -> Ending:
    """Return a text as the way to end that it names.

    Raises:
        InvalidArgument: messages do not end so.
    """
    if how not in ENDINGS:
        raise InvalidArgument(f"how={how!r} must be one of {', '.join(ENDINGS)}")
    return ENDINGS[ENDINGS.index(how)]  # the same text, with the type `Ending`


def wait_seconds(wait: Duration | None) -> float | None:
    """Return a wait in seconds."""
    return None if wait is None else milliseconds(wait, "wait") / 1000


def one_or_several(ids: str | Iterable[str]) -> list[str]:
    """Return one id or several as a list.

    Raises:
        InvalidArgument: `ids` is neither a `str` nor several, or one is not a valid id.
    """
    return ids_of([ids] if isinstance(ids, str) else ids)


def ids_of(ids: Iterable[str]) -> list[str]:
    """Return several ids as a list.

    Raises:
        InvalidArgument: `ids` is not an iterable of `str`, or one is not a valid id.
    """
    is_list = isinstance(ids, list)  # asked first: to look for the abstract types takes long
    if not is_list and (isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Iterable)):
        raise InvalidArgument(f"ids must be a list of str, not {type(ids).__name__}")
    return [check_name(id) for id in ids]


def check_undo(undo: bool, *, several: bool, dry_run: bool, within: object) -> None:
    """Refuse `undo=True` where it has no meaning.

    Args:
        undo: as it was given.
        several: whether several messages are to be changed.
        dry_run: whether the change is only counted.
        within: the user's connection, if it was given.

    Raises:
        InvalidArgument: the change cannot be taken back.
    """
    if undo and not several:
        raise InvalidArgument(
            "undo= is for changes of many messages, by group=, after= or before=; a change "
            "of one message is taken back with put, reschedule or edit"
        )
    if undo and (dry_run or within is not None):
        name = "dry_run" if dry_run else "within"
        raise InvalidArgument(f"undo= and {name}= cannot be combined; leave one of them out")


def progress_of(done: float, of: float | None = None, text: str = "") -> Progress:
    """Return a report, checked.

    Raises:
        InvalidArgument: `done` or `of` is not a finite number, or `text` is not a `str`.
    """
    for name, value in (("done", done), ("of", of)):
        if name == "of" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(f"{name}={value!r} is not a number")
        try:
            is_finite = isfinite(value)
        except OverflowError:  # an `int` that is too large for a `float`
            is_finite = False
        if not is_finite:
            raise InvalidArgument(f"{name} must be a finite number, as a report is JSON")
    if not isinstance(text, str):
        raise InvalidArgument(f"text takes a str, not {type(text).__name__}")
    readable = text.encode(errors="replace").decode()
    return Progress(float(done), None if of is None else float(of), readable[:MAX_PROGRESS_TEXT])


def check_running(
    running: bool, wait: Duration | None, id: str | None, undo: bool, within: object
) -> None:
    """Refuse arguments of a cancel that do not go together with `running`.

    Raises:
        InvalidArgument: two of them cannot be combined.
    """
    if wait is not None and (not running or id is None or within is not None):
        raise InvalidArgument(
            "wait= waits for the end of one message that is running: give its id and running=True, "
            "and no within="
        )
    if running and undo:
        raise InvalidArgument(
            "undo= and running= cannot be combined: work that was stopped cannot go on"
        )


def check_no_rule(
    group: str | None, after: Moment | None, before: Moment | None, dry_run: bool
) -> None:
    """Check that a change of one message has no argument that selects several.

    Raises:
        InvalidArgument: it has such an argument.
    """
    if dry_run or not (group is None and after is None and before is None):
        raise InvalidArgument(
            "name one message by its id, or several by group=, after= and before=, not both"
        )


def check_joins(command: Command) -> None:
    """Check that a command can be part of a user's transaction.

    Raises:
        InvalidArgument: it names a version of a message, or only counts.
    """
    if getattr(command, "if_version", None) is not None:
        raise InvalidArgument(
            "if_version= and within= cannot be combined: lock a row of your own in the transaction"
        )
    if command.only_reads:
        raise InvalidArgument("dry_run= only counts: leave out within=")


_host = socket.gethostname()


def own_name() -> str:
    """Return the name of this process in its claims: host and process id."""
    return f"{_host}:{os.getpid()}"


def user_name() -> str:
    """Return the name of the user who runs this process, or the user's id."""
    import getpass

    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # no name, as in containers, or a system without
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def results_of(results: Sequence[Any] | None, count: int) -> list[bytes | None]:
    """Return the results of `count` deliveries as JSON, `None` for none; an empty list if all are.

    Raises:
        InvalidArgument: there are more or fewer, or one cannot be JSON.
    """
    if results is None:
        return []
    if isinstance(results, str) or not isinstance(results, Sequence) or len(results) != count:
        raise InvalidArgument(
            f"results must be a list of {count}: one result, or None, for each delivery"
        )
    encoded = [None if result is None else encode_result(result) for result in results]
    return encoded if any(encoded) else []
