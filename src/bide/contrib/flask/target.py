"""What `flask bide` names as the app: looking it up loads the application in a worker process."""

import os
from typing import Any

from flask import current_app, has_app_context
from flask.cli import NoAppException, ScriptInfo

from bide.contrib.flask import NAME
from bide.model.errors import InvalidArgument


def __getattr__(name: str) -> Any:
    """Return the extension of the application: the current one, or else that FLASK_APP names.

    `flask bide` has made the application already; to make it once more could register its handlers
    twice. The processes of a worker have none yet.

    Raises:
        InvalidArgument: there is no application, or it has no extension of bide.
    """
    if name != "app":
        raise AttributeError(name)
    try:
        application = (
            current_app
            if has_app_context()
            else ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()
        )
    except NoAppException as error:
        raise InvalidArgument(
            f"a process of the worker cannot load the application: {error.message} "
            "FLASK_APP=module:create_app names it also for a command line of your own"
        ) from error
    if NAME not in application.extensions:
        raise InvalidArgument(
            f"the application {application.name!r} has no bide: call init_app(app) of "
            "bide.contrib.flask.Bide"
        )
    return application.extensions[NAME].jobs
