"""Log what commands do to tokens and subscriptions, as servers log what their clients do."""

import functools
import socket
from collections.abc import Callable
from typing import Any

from bide.cli import option
from bide.model.errors import BideError
from bide.model.identity import split_name
from bide.queue.arguments import user_name

Done = bool | None | dict[str, bool]
"""What a command returns: whether it did what was asked; by name, where it takes several."""


def logged(act: str) -> Callable[[Callable[..., Done]], Callable[..., bool | None]]:
    """Take `--action-log`, and append a line for each token or subscription that is named.

    Args:
        act: the name of what the command does, as /openapi.json has it where it has it.
    """

    def decorate(function: Callable[..., Done]) -> Callable[..., bool | None]:
        @option.action_log
        @functools.wraps(function)
        def run(*given: Any, action_log: str | None, **options: Any) -> bool | None:
            from bide.server.logs import DONE, Act, ActionLog

            log = ActionLog(action_log)
            which = next((argument for argument in given if isinstance(argument, str)), None)
            queue, name = options.get("queue"), options.get("name") or None
            namespace, name = (
                split_name(which) if which else (options.get("namespace"), name or queue)
            )
            results = {name: "failed"}
            try:
                done = function(*given, **options)
                outcomes = {name: done} if not isinstance(done, dict) else done
                good = (True,) if which else (True, None)
                results = {
                    n: DONE if outcome in good else "not-found" for n, outcome in outcomes.items()
                }
                return all(done.values()) if isinstance(done, dict) else done
            except BideError as error:
                results = {name: type(error).__name__}
                raise
            finally:
                log.write(
                    [Act(act, queue, None, result, name) for name, result in results.items()],
                    who=user_name(),
                    token="",
                    client=f"shell@{socket.gethostname()}",
                    namespace=namespace,
                )
                log.close()

        return run

    return decorate
