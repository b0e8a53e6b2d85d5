"""bide for Django: queues that join its transactions, `manage.py bide`, the admin, `django.tasks`.

Add `bide.contrib.django` to `INSTALLED_APPS`.

Example, in `shop/handlers.py`:

    from bide.contrib.django import Queue, app

    orders = Queue("orders")


    @app.handler("orders")
    def expire(order: dict) -> None: ...
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bide.contrib.django.application import DjangoApp as App
    from bide.contrib.django.application import app
    from bide.contrib.django.queues import AsyncQueue, Queue, group_of

__all__ = ["App", "AsyncQueue", "Queue", "app", "group_of"]

_FOUND_IN = {
    "App": ("application", "DjangoApp"),
    "app": ("application", "app"),
    "AsyncQueue": ("queues", "AsyncQueue"),
    "Queue": ("queues", "Queue"),
    "group_of": ("queues", "group_of"),
}
"""By public name: the module here that has it, and its name there."""


def __getattr__(name: str) -> Any:
    """Import what is asked for: Django imports this module before its settings are ready."""
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, own_name = _FOUND_IN[name]
    return getattr(import_module(f"{__name__}.{module}"), own_name)
