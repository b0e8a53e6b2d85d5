"""The dashboard: queues, messages, dead letters, workers and subscriptions in a browser.

`bide dashboard` serves it on this machine; `asgi` and `wsgi` mount it in an application of yours.
"""

try:
    from bide.dashboard.access import ACTIONS, Access
    from bide.dashboard.app import asgi
    from bide.dashboard.wsgi_app import wsgi
except ModuleNotFoundError as error:
    raise ImportError(
        f"the dashboard needs {error.name}; install it with: pip install 'bide[dashboard]'"
    ) from error

__all__ = ["ACTIONS", "Access", "asgi", "wsgi"]
