"""What `flask bide worker` names as its app: looking it up loads the application."""

import os
from typing import Any

from flask.cli import ScriptInfo

from bide.contrib.flask import NAME
from bide.model.errors import InvalidArgument


def __getattr__(name: str) -> Any:
    """Return the extension of the application that FLASK_APP names, or that Flask finds.

    Raises:
        InvalidArgument: the application has no extension of bide.
    """
    if name != "app":
        raise AttributeError(name)
    application = ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()
    if NAME not in application.extensions:
        raise InvalidArgument(
            f"the application {application.name!r} has no bide: call init_app(app) of "
            "bide.contrib.flask.Bide"
        )
    return application.extensions[NAME].jobs
