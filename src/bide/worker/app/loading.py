"""Import the `App` that `module:app` on a command line names, or the `Task`: `module:task`."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from bide.model.errors import InvalidArgument
from bide.worker.app.app import App
from bide.worker.app.task import Task

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
"""The folder of bide, as the paths of its files begin."""


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
    module = _import(module_name)
    named_object = _attribute(module, name)
    if celery or hasattr(named_object, OF_CELERY):
        named_object = _publisher(target, named_object, celery=celery)
    if isinstance(named_object, App):
        if url is not None:
            named_object._url = url
        return named_object
    apps = _apps(module)
    hint = f"; it has: {', '.join(apps)}" if apps else "; make one there with: app = bide.App()"
    if named_object is None:
        raise InvalidArgument(f"{module_name} has no {name!r}{hint}")
    raise InvalidArgument(f"{name!r} of {module_name} is not a bide.App{hint}")


def load_task(target: str) -> Task[..., Any]:
    """Import the task that `module:name` names: an attribute, or a task of an app in the module.

    Args:
        target: `module:name`.

    Raises:
        InvalidArgument: there is no such module, its import fails, or it has no such task.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name or "/" in module_name:
        raise InvalidArgument(
            f"{target!r} names no task; write module:task, as in: bide call shop:expire"
        )
    module = _import(module_name)
    named_object = _attribute(module, name)
    if isinstance(named_object, Task):
        return named_object
    # By identity: a module may have two names for one app.
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    tasks_of_name = [app.tasks[name] for app in apps.values() if name in app.tasks]
    if len(tasks_of_name) == 1:
        return tasks_of_name[0]
    if tasks_of_name:
        raise InvalidArgument(
            f"several apps of {module_name} have a task {name!r}; write the name of its function"
        )
    if callable(named_object):
        raise InvalidArgument(f"{target} is not a task; decorate it with @app.task")
    names = [key for key, value in vars(module).items() if isinstance(value, Task)]
    names = names or [key for app in apps.values() for key in app.tasks]
    listed = ", ".join(f"{module_name}:{key}" for key in names)
    hint = f"it has: {listed}" if names else "make one there with @app.task"
    raise InvalidArgument(f"{module_name} has no task {name!r}; {hint}")


def _attribute(module: ModuleType, path: str) -> Any:
    """Return what a path such as `app` or `Shop.app` names in a module; `None` if there is none."""
    named_object: object = module
    for part in path.split("."):
        named_object = getattr(named_object, part, None)
    return named_object


def _publisher(target: str, named_object: Any, *, celery: bool) -> App:
    """Return the app that publishes the delayed tasks of an app of Celery.

    Args:
        target: `module:name`, for errors.
        named_object: what it names.
        celery: whether it was named as an app of Celery.

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
    """Import a module. Those of the current directory come first, as when a script there is run.

    Raises:
        InvalidArgument: there is no such module, or its import fails.
    """
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        __import__(name)  # importlib.import_module would add its own frames to tracebacks
        return sys.modules[name]
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise _no_module(name, missing) from error
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
        frames = error.__traceback__
        # Without the first frame, which is this function.
        traceback.print_exception(error.with_traceback(frames and frames.tb_next))
        what = f"{type(error).__name__}: {error}"
        raise InvalidArgument(f"{name} cannot be imported: {what}") from error


def _no_module(name: str, missing: str) -> InvalidArgument:
    """Return the error for a module that does not exist.

    Args:
        name: the module, such as `shop.app`.
        missing: what of it does not exist: the module, or a package that it is in.
    """
    # `shop.app` may have been meant for the attribute `app` of a module `shop`, which is there.
    package = sys.modules.get(name.rpartition(".")[0])
    apps = [] if package is None else _apps(package)
    fix = f"write {apps[0]}" if apps else "run this where your code is"
    return InvalidArgument(
        f"there is no module {missing!r} in {Path.cwd()} or among the installed packages; {fix}"
    )


def _place(trace: TracebackType | None) -> str:
    """Return " (FILE, line NUMBER)" of the user's code that raised; "" if there is none."""
    not_of_user = (PACKAGE, "<frozen importlib", importlib.__file__)
    frames = [
        frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(not_of_user)
    ]
    if not frames:
        return ""
    innermost = frames[-1]
    return f" ({os.path.relpath(innermost.filename)}, line {innermost.lineno})"
