"""Import the `App` that `module:app` on a command line names."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from bide.model.errors import InvalidArgument
from bide.worker.app.app import App

EXTRAS = {
    "alembic": "sqlalchemy",
    "celery": "celery",
    "cronsim": "schedules",
    "flask": "flask",
    "h11": "server",
    "httptools": "server",
    "opentelemetry": "otel",
    "prometheus_client": "metrics",
    "redis": "redis",
    "sentry_sdk": "sentry",
    "starlette": "fastapi",
}
"""The extra of bide that installs a module. The package of other modules may have another name:
that of `yaml` is PyYAML."""

OF_CELERY = "__bide_app__"
"""The attribute of a Celery app that makes the app which publishes its delayed tasks."""

PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"


def load(target: str, url: str | None = None, *, celery: bool = False) -> App:
    """Import the app that `module:name` names; the default name is `app`.

    Modules of the current directory come first, as when a script there is run.

    Args:
        target: `module:name`.
        url: replaces the store of the app.
        celery: whether it names an app of Celery in which `bide.contrib.celery` is installed.

    Raises:
        InvalidArgument: there is no such module, its import fails, or it has no app of that name.
    """
    module_name, _, name = target.partition(":")
    name = name or "app"
    if not module_name or module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InvalidArgument(
            f"{target!r} names no app; write module:app, as in: bide worker {hint or 'shop'}:{name}"
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    module = _import(module_name)
    named_object: object = module
    for part in name.split("."):
        named_object = getattr(named_object, part, None)
    if celery or hasattr(named_object, OF_CELERY):
        named_object = _publisher(target, named_object, celery)
    if isinstance(named_object, App):
        named_object._url = url or named_object._url
        return named_object
    apps = _apps(module)
    hint = f"; it has: {', '.join(apps)}" if apps else "; make one there with: app = bide.App()"
    what = "has no" if named_object is None else "has something else than a bide.App as"
    raise InvalidArgument(f"{module_name} {what} {name!r}{hint}")


def _publisher(target: str, named_object: Any, celery: bool) -> App:
    """Return the app that publishes the delayed tasks of an app of Celery.

    Raises:
        InvalidArgument: nothing is installed in it, or it was not named as one of Celery.
    """
    if not celery:
        raise InvalidArgument(
            f"{target} is an app of Celery; to publish its delayed tasks when they are due: "
            f"bide worker --celery {target}"
        )
    if not hasattr(named_object, OF_CELERY):
        what = "missing" if named_object is None else f"of type {type(named_object).__name__}"
        raise InvalidArgument(
            f"--celery {target} names no Celery app with bide in it: it is {what}; call "
            "bide.contrib.celery.install(app) where the Celery app is made"
        )
    app: App = getattr(named_object, OF_CELERY)()
    return app


def _apps(module: ModuleType) -> list[str]:
    """Return the apps of a module, in the form of the command line."""
    names = [key for key, value in vars(module).items() if isinstance(value, App)]
    return [f"{module.__name__}:{key}" for key in names]


def _import(name: str) -> ModuleType:
    try:
        __import__(name)  # importlib.import_module would add its own frames to tracebacks
        return sys.modules[name]
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            owner = sys.modules.get(name.rpartition(".")[0])
            apps = [] if owner is None else _apps(owner)
            fix = f"write {apps[0]}" if apps else "run this where your code is"
            raise InvalidArgument(
                f"there is no module {missing!r} in {Path.cwd()} or among the installed "
                f"packages; {fix}"
            ) from error
        extra = EXTRAS.get(missing.partition(".")[0])
        fix = f"pip install 'bide[{extra}]'" if extra else "install the package that brings it"
        raise InvalidArgument(
            f"{name} imports {missing!r}, which is not installed{_place(error.__traceback__)}; "
            f"{fix}, for {sys.executable}"
        ) from error
    except InvalidArgument as error:  # its text needs no traceback
        where = _place(error.__traceback__)
        raise InvalidArgument(f"{name} cannot be imported{where}: {error}") from error
    except Exception as error:
        here = error.__traceback__
        traceback.print_exception(error.with_traceback(here and here.tb_next))
        what = f"{type(error).__name__}: {error}"
        raise InvalidArgument(f"{name} cannot be imported: {what}") from error


def _place(trace: TracebackType | None) -> str:
    """Return the file and line of the user's code that raised, if any."""
    others = (PACKAGE, "<frozen importlib", importlib.__file__)
    frames = [
        frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(others)
    ]
    if not frames:
        return ""
    return f" ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})"
