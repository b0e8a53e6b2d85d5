"""The app of a project, for `manage.py bide worker`: the handlers of all its applications."""

import logging

import django
from django.apps import apps
from django.conf import settings
from django.utils.log import RequireDebugTrue
from django.utils.module_loading import autodiscover_modules

import bide
from bide.contrib.django.conf import configuration
from bide.worker.app.loading import load


def _is_of_django(handler: logging.Handler) -> bool:
    """Tell whether Django made a handler that prints, and not the settings of the project."""
    return handler.name == "console" and any(
        isinstance(log_filter, RequireDebugTrue) for log_filter in handler.filters
    )


if not apps.ready:  # a process of the worker has begun
    django.setup()
    django_log = logging.getLogger("django")
    if django_log.propagate:  # the worker's log has these lines, too
        django_log.handlers = [
            handler for handler in django_log.handlers if not _is_of_django(handler)
        ]


def _app_of_project() -> bide.App:
    """Return the app that the settings name, or that of the kit with all handlers."""
    if (target := configuration().app) is not None:
        project_app = load(target)
    else:
        from bide.contrib.django.application import app as project_app

        autodiscover_modules("handlers")
    _serve_tasks(project_app)
    return project_app


def _serve_tasks(app: bide.App) -> None:
    """Register the queues of `django.tasks`, where it is there and a backend of bide is set."""
    if django.VERSION < (6, 0) or not settings.TASKS:
        return
    from django.tasks import task_backends

    from bide.contrib.django.tasks import BideBackend

    for backend in task_backends.all():
        if isinstance(backend, BideBackend):
            backend.register(app)


app = _app_of_project()
