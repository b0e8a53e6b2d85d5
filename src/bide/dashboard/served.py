"""The dashboard as pages of `bide serve`, with its tokens, quotas and action log."""

from bide.dashboard.access import Access
from bide.dashboard.app import Dashboard
from bide.dashboard.session import Sessions
from bide.model.commands import Edit, Put
from bide.model.message import Item
from bide.server.service import Service


def dashboard_of(service: Service, key: bytes) -> Dashboard:
    """Return the dashboard of a server.

    Args:
        service: of the server.
        key: the secret of the server's processes that makes the codes of sessions.
    """

    async def admit(access: Access, queue: str, what: Item | Edit) -> None:
        """Keep a visitor within the quotas of their namespace."""
        command = what if isinstance(what, Edit) else Put(queue, [what])
        await service.quotas.admit(access.caller, [command])

    return Dashboard(
        service.settings.store, lambda scope: None, service.settings.dashboard_hide,
        service.action_log, service.clock, sessions=Sessions(service, key), admit=admit,
        address=service.addresses.of, slow_reads=service.slow_reads,
    )  # fmt: skip
