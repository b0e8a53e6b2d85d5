"""The dashboard as pages of `bide serve`, with its tokens, quotas and action log.

Run as a program, it is a process of a server that also shows the dashboard; see
`bide.server.serve`.
"""

import os
import sys

from bide.dashboard.access import Access
from bide.dashboard.app import Dashboard
from bide.dashboard.sessions import Sessions
from bide.model.commands import Command
from bide.model.undoing import Bulk, Undo
from bide.server.limits.admitted import Admitted
from bide.server.serve import SESSION_KEY, main
from bide.server.service import Service


def dashboard_of(service: Service, key: bytes) -> Dashboard:
    """Return the dashboard of a server.

    Args:
        service: of the server.
        key: the secret of the server's processes that makes the codes of sessions.
    """

    async def admit(access: Access, command: Command | Bulk | Undo) -> Admitted:
        """Keep a visitor within the quotas of their namespace."""
        return await service.quotas.admit(access.caller, [command])

    return Dashboard(
        service.settings.store,
        lambda scope: None,
        service.settings.dashboard_hide,
        service.action_log,
        service.clock,
        sessions=Sessions(service, key),
        admit=admit,
        address=service.addresses.of,
        gate=service.gate,
        bodies=service.large_bodies,
    )


if __name__ == "__main__":
    key = bytes.fromhex(os.environ.pop(SESSION_KEY))
    sys.exit(main(sys.argv[1:], lambda service: dashboard_of(service, key)))
