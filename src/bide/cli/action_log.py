"""Log what commands do to tokens and subscriptions, as servers log what their clients do."""

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bide.cli import option
from bide.model.errors import BideError
from bide.model.identity import split_name
from bide.queue.arguments import user_name

CommandResult = bool | None | dict[str, bool]
"""What a command returns: whether it did what was asked; by name, where it takes several."""


class Subject(NamedTuple):
    """The token or subscription that a command is about."""

    namespace: str | None
    name: str | None
    must_exist: bool
    """Whether it is one that must exist, which a result of `None` denies."""


def _subject_of(arguments: Sequence[Any], options: Mapping[str, Any]) -> Subject:
    """Return what a command is about: `on_subscription` gives the full name as an argument.

    Other commands, which create something, have options with its name, or that of its queue.
    """
    full_name = next((argument for argument in arguments if isinstance(argument, str)), None)
    if full_name:
        namespace, name = split_name(full_name)
        return Subject(namespace, name, must_exist=True)
    own_name = options.get("name") or options.get("queue")
    return Subject(options.get("namespace"), own_name, must_exist=False)


def _was_done(outcome: bool | None, subject: Subject) -> bool:
    """Tell whether a command has done what was asked; `None`: its function returns nothing."""
    return outcome is True or (outcome is None and not subject.must_exist)


def logged(act: str) -> Callable[[Callable[..., CommandResult]], Callable[..., bool | None]]:
    """Take `--action-log`, and append a line for each token or subscription that is named.

    Args:
        act: the name of what the command does, as /openapi.json has it where it has it.
    """

    def decorate(function: Callable[..., CommandResult]) -> Callable[..., bool | None]:
        @option.action_log
        @functools.wraps(function)
        def run(*arguments: Any, action_log: str | None, **options: Any) -> bool | None:
            from bide.server.logs import DONE, Act, ActionLog

            log = ActionLog(action_log)
            subject = _subject_of(arguments, options)
            log_results: dict[str | None, str] = {subject.name: "failed"}
            try:
                result = function(*arguments, **options)
                results = result if isinstance(result, dict) else {subject.name: result}
                log_results = {
                    name: DONE if _was_done(outcome, subject) else "not-found"
                    for name, outcome in results.items()
                }
                return all(result.values()) if isinstance(result, dict) else result
            except BideError as error:
                log_results = {subject.name: type(error).__name__}
                raise
            finally:
                log.write(
                    [
                        Act(act, options.get("queue"), None, log_result, name)
                        for name, log_result in log_results.items()
                    ],
                    who=user_name(),
                    token="",
                    client=f"shell@{socket.gethostname()}",
                    namespace=subject.namespace,
                )
                log.close()

        return run

    return decorate
