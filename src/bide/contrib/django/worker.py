"""The app of a project, for `manage.py bide worker`: the handlers of all its applications."""

import django
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

import bide
from bide.contrib.django.conf import configuration
from bide.worker.app.loading import load

__all__ = ["TARGET", "app"]

TARGET = "bide.contrib.django.worker:app"

if not apps.ready:  # a process of the worker has begun
    django.setup()


def _app_of_project() -> bide.App:
    if (target := configuration().app) is not None:
        return load(target)
    from bide.contrib.django.application import app

    autodiscover_modules("handlers")
    return app


app = _app_of_project()
