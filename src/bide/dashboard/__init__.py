"""The dashboard: queues, messages, dead letters, workers and subscriptions in a browser.

`bide dashboard` serves it on this machine; `asgi` and `wsgi` mount it in an application of yours.
"""

from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.app import asgi
from bide.dashboard.wsgi_app import wsgi

__all__ = ["ACTIONS", "Access", "asgi", "wsgi"]
