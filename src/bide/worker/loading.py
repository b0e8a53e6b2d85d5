"""From `module:app` on a command line to the `App`."""

import importlib
import sys
import traceback
from pathlib import Path

from bide.model.errors import InvalidArgument
from bide.worker.app import App

__all__ = ["load"]


def load(target: str) -> App:
    """Import the app that `module:name` names; the name is `app` if it is left out.

    The current directory is looked into first, as when a script there is run.

    Raises:
        InvalidArgument: there is no such module, it fails when it is imported, or it has no app
            of that name.
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
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = [key for key, value in vars(module).items() if isinstance(value, App)]
    if apps:
        hint = f"; it has: {', '.join(f'{module_name}:{app}' for app in apps)}"
    else:
        hint = "; make one there with: app = bide.App()"
    what = "has no" if found is None else "has something else than a bide.App as"
    raise InvalidArgument(f"{module_name} {what} {name!r}{hint}")


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise InvalidArgument(
                f"there is no module {missing!r} in {Path.cwd()} or among the installed "
                "packages; run this where your code is"
            ) from error
        raise InvalidArgument(
            f"{name} imports {missing!r}, which is not installed: pip install {missing}"
        ) from error
    except Exception as error:
        traceback.print_exception(error)
        raise InvalidArgument(
            f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
