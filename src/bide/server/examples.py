"""Examples of what requests send, for the description of the API and the forms on its page."""

from typing import Any

NAMES = {"queue": "orders", "id": "order-42", "name": "shop", "holder": "web1:4711"}
"""Examples of what is named in a path."""

_LEASES = [{"id": "order-42", "token": 1}]

BODIES: dict[str, dict[str, Any]] = {
    "putNamed": {"body": {"order": 42}, "delay": "30m"},
    "put": {"body": {"order": 42}, "delay": "30m"},
    "putMany": {"messages": [{"body": 1, "delay": "1m"}, {"body": 2, "delay": "2m"}]},
    "edit": {"delay": "1h", "priority": 10},
    "rescheduleWhere": {"delay": "1h"},
    "claim": {"count": 1, "lease": "30s", "wait": "10s"},
    "ack": {"leases": _LEASES},
    "retry": {"leases": _LEASES, "delay": "10s", "reason": "the shop is closed"},
    "extend": {"leases": _LEASES, "lease": "30s"},
    "bury": {"leases": _LEASES, "reason": "no such customer"},
    "release": {"leases": _LEASES},
    "endLease": {"reason": "the worker hangs"},
    "configure": {"history": "7d"},
    "purge": {"state": "dead"},
    "revive": {"ids": ["order-42"]},
    "undo": {"undo": "01kb2n8m7dzz4r6y0t5v9x3h1q"},
    "putSubscription": {"queue": "orders", "url": "https://shop.example/hooks/bide"},
    "changeSubscription": {"concurrency": 5},
    "pauseSubscription": {"reason": "the shop moves"},
    "rotateSecret": {"overlap": "1d"},
    "batch": {"commands": [{"command": "count", "queue": "orders"}]},
}
"""Bodies by the name of their operation; of the others, `{}` is one."""
