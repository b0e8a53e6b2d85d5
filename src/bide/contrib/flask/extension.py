"""The extension: the queues of a Flask application, and its handlers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, cast

from flask import Flask, current_app, has_app_context
from werkzeug.local import LocalProxy

from bide.clock import SYSTEM_CLOCK, Clock
from bide.consuming.handler import Handler
from bide.consuming.handling import Handling
from bide.consuming.queue_handlers import QueueHandlers
from bide.contrib.flask.commands import command
from bide.engines.registry import DEFAULT_URL, opener
from bide.model.errors import WrongContext
from bide.queue.sync import Queue
from bide.worker.app.app import App
from bide.worker.app.lifespan import Lifespan

__all__ = ["Bide"]

NAME = "bide"
"""Under which name an application has its extension."""


class Bide(App):
    """A `bide.App` for Flask: each handler, source and schedule runs in the application context.

    The application's configuration names the store: `BIDE_URL`; without it, the environment's
    `BIDE_URL`, else `sqlite:///bide.db`. `BIDE_OUTBOX` names the database whose outbox
    `flask bide worker` forwards.

    Args:
        app: the application, if it exists already; else call `init_app`.
        lifespan, clock: as for `bide.App`.

    Raises:
        InvalidArgument: the configured URL names no store.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        lifespan: Lifespan | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(lifespan=lifespan, clock=clock)
        self._flask: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add the queues, and the command `flask bide`, to an application.

        With several applications, as in tests, each has queues of its own. Handlers run in the
        context of the last one.

        Raises:
            InvalidArgument: the configured URL names no store.
        """
        url = app.config.get("BIDE_URL") or os.environ.get("BIDE_URL") or DEFAULT_URL
        opener(url)  # raises if it is not the URL of a store
        self._flask, self._url = app, url
        app.extensions[NAME] = _Opened(self, url)
        app.cli.add_command(command)

    def queue(self, name: str, **options: Any) -> Queue:
        """Return a queue of the current application, for a module: it is opened at its first use.

        Args:
            name: of the queue.
            options: of `bide.Queue`, such as `keep="1d"`.

        Raises:
            WrongContext: at its use: `init_app` was not called.
        """
        return cast("Queue", LocalProxy(lambda: self._opened().queue(name, options)))

    @property
    def queue_handlers(self) -> Mapping[str, QueueHandlers]:
        """The handlers by queue, including those of jobs, sources and schedules."""
        return MappingProxyType(
            {queue: self._in_context(known) for queue, known in self._queue_handlers.items()}
        )

    def _in_context(self, known: QueueHandlers) -> QueueHandlers:
        handlers: dict[str | None, Handler] = {
            job: _InContext(
                **{each.name: getattr(handler, each.name) for each in fields(handler)}, owner=self
            )
            for job, handler in known.handlers.items()
        }
        return replace(known, handlers=handlers)

    def _opened(self) -> "_Opened":
        app = current_app if has_app_context() else self._flask
        found = app.extensions.get(NAME) if app is not None else None
        if found is None:
            raise WrongContext(
                "this application has no bide yet: call init_app(app) of bide.contrib.flask.Bide"
            )
        assert isinstance(found, _Opened)
        return found


class _Opened:
    """The queues that one application has opened."""

    def __init__(self, jobs: Bide, url: str) -> None:
        self.jobs = jobs
        self.url = url
        self._queues: dict[tuple[object, ...], Queue] = {}

    def queue(self, name: str, options: Mapping[str, Any]) -> Queue:
        key = name, *sorted(options.items())
        found = self._queues.get(key)
        if found is None:  # of two threads that come here at once, one wins; a queue is cheap
            found = self._queues.setdefault(key, Queue(name, **{"url": self.url, **options}))
        return found


@dataclass(frozen=True, eq=False)
class _InContext(Handler):
    """A handler that runs in a context of the application, with its own teardown."""

    owner: Bide | None = None

    def call(self, one: Handling) -> Any:
        """Call the function, in its thread or on the event loop."""
        return self._on_loop(one) if self.is_async else self._in_thread(one)

    def _in_thread(self, one: Handling) -> Any:
        with self._app.app_context():
            return super().call(one)

    async def _on_loop(self, one: Handling) -> Any:
        with self._app.app_context():
            return await super().call(one)

    @property
    def _app(self) -> Flask:
        assert self.owner is not None
        if self.owner._flask is None:
            raise WrongContext(
                "handlers of this extension need their application: run flask bide worker, or "
                "call init_app(app) in the module that bide worker loads"
            )
        return self.owner._flask
