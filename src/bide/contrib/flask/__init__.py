"""bide in Flask: an extension with queues, handlers that run in the application context, and a CLI.

Example::

    bide = Bide()
    orders = bide.queue("orders")

    @bide.handler("orders")
    def time_out(order: dict) -> None: ...  # current_app and db.session are there

    def create_app():
        app = Flask(__name__)
        bide.init_app(app)
        return app

`flask bide` is the command line, on the store of the application; `flask bide worker` runs the
handlers.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, NamedTuple, cast

import click
from flask import Flask, current_app, has_app_context
from flask.cli import ScriptInfo
from werkzeug.local import LocalProxy

from bide.clock import SYSTEM_CLOCK, Clock
from bide.contrib.context_app import ContextApp
from bide.contrib.project_program import ProjectProgram
from bide.engines.registry import named_url, opener
from bide.model.errors import InvalidArgument, WrongContext
from bide.queue.aio import AsyncQueue
from bide.queue.sync import Queue
from bide.worker.app.lifespan import Lifespan
from bide.worker.app.open_queues import OpenQueues

__all__ = ["Bide"]

NAME = "bide"
"""Under which name an application has its extension."""


class Bide(ContextApp):
    """A `bide.App` for Flask: each handler, source and schedule runs in the application context.

    The application's configuration names the store: `BIDE_URL`; without it, the environment's
    `BIDE_URL`, else `sqlite:///bide.db`. `BIDE_OUTBOX` names the database whose outbox
    `flask bide worker` forwards.

    Args:
        app: the application, if it exists already; else call `init_app`. It has one extension.
        lifespan: opens and closes what handlers need, such as a connection pool: a function that
            takes the app and returns a context manager, plain or async.
        clock: for tests; see `bide.testing.FakeClock`.

    Raises:
        InvalidArgument: the configured URL names no store, or the application has another
            extension of bide.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        lifespan: Lifespan | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(lifespan=lifespan, clock=clock)
        self._open_queues = OpenQueues(self._url_of_application, clock)
        self._flask: Flask | None = None
        """The application in whose context handlers run; `None`: none has the extension yet."""
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add the queues, and the command `flask bide`, to an application.

        With several applications, as in tests, each has queues of its own. Handlers run in the
        context of the last one.

        Raises:
            InvalidArgument: the configured URL names no store, or the application has another
                extension of bide.
        """
        if NAME in app.extensions and app.extensions[NAME].jobs is not self:
            raise InvalidArgument(
                f"the application {app.name!r} has a Bide already, and runs the handlers of one; "
                "make one Bide() for all of its modules"
            )
        url = named_url(app.config.get("BIDE_URL"))
        opener(url)  # raises if it is not the URL of a store
        self._flask, self._url = app, url
        app.extensions[NAME] = _Extension(self, url)
        app.cli.add_command(command)

    def queue(self, name: str, **options: Any) -> Queue:
        """Return a queue of the current application, for a module: it is opened at its first use.

        Args:
            name: of the queue.
            options: of `bide.Queue`, such as `keep="1d"`.

        Raises:
            WrongContext: at its use: `init_app` was not called.
        """
        return cast("Queue", LocalProxy(lambda: self._open_queues.queue(name, **options)))

    def async_queue(self, name: str, **options: Any) -> AsyncQueue:
        """Return the same for event loops."""
        proxy = LocalProxy(lambda: self._open_queues.async_queue(name, **options))
        return cast("AsyncQueue", proxy)

    def _thread_context(self) -> AbstractContextManager[object]:
        """Return a context of the application, with its own teardown."""
        if self._flask is None:
            raise WrongContext(
                "handlers of this extension need their application: run flask bide worker, or "
                "call init_app(app) in the module that bide worker loads"
            )
        return self._flask.app_context()

    @asynccontextmanager
    async def _loop_context(self) -> AsyncIterator[None]:
        """Enter a context of the application, for an async handler."""
        with self._thread_context():
            yield

    def _url_of_application(self) -> str:
        """Return the URL of the store of the current application.

        `bide worker --url` replaces that of the application in whose context handlers run.

        Raises:
            WrongContext: it has no extension of bide.
        """
        app = cast("Any", current_app)._get_current_object() if has_app_context() else self._flask
        extension = app.extensions.get(NAME) if app is not None else None
        if extension is None:
            raise WrongContext(
                "this application has no bide yet: call init_app(app) of bide.contrib.flask.Bide"
            )
        assert isinstance(extension, _Extension)
        return self._url if app is self._flask else extension.url


class _Extension(NamedTuple):
    """What an application has in its `extensions`."""

    jobs: Bide
    url: str
    """Its store."""


TARGET = "bide.contrib.flask.target:app"
"""Its import loads the application, in each process of a worker."""

WORKER = """Run the handlers of the application's extension, in its application context."""


@click.command(
    "bide",
    short_help="Work with the queues of this application.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Work with the queues of this application. Without arguments: list the commands."""
    environment = _environment(ctx.ensure_object(ScriptInfo))
    ProjectProgram(TARGET, WORKER).run(arguments, "flask bide", environment)


def _environment(info: ScriptInfo) -> dict[str, str]:
    """Return what this process, and the processes of a worker, read from the environment."""
    environment = {"BIDE_URL": current_app.extensions[NAME].url}
    if outbox := current_app.config.get("BIDE_OUTBOX"):
        environment["BIDE_OUTBOX"] = str(outbox)
    if import_path := _import_path(info.create_app) or info.app_import_path:
        environment["FLASK_APP"] = import_path
    return environment


def _import_path(create_app: Any) -> str | None:
    """Return what FLASK_APP has to be for a factory of `FlaskGroup(create_app=...)`.

    `None`: there is none, or no other process can import it, such as a lambda.
    """
    module_name, name = (getattr(create_app, key, "") for key in ("__module__", "__name__"))
    of_module = getattr(sys.modules.get(module_name), name, None)
    if create_app is None or of_module is not create_app or module_name == "__main__":
        return None
    return f"{module_name}:{name}"
