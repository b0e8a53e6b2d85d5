"""The dashboard as pages of `bide serve`, with its tokens, quotas and action log."""

from bide.dashboard.access import Access
from bide.dashboard.app import Dashboard
from bide.dashboard.session import Sessions
from bide.model.commands import Edit
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
        quotas, now = service.quotas, service.clock.now()
        if isinstance(what, Edit):
            await quotas.admit_edit(access.caller, what, now)
        elif quotas.any:
            await quotas.admit(access.caller, [queue], [what], now)

    return Dashboard(
        service.settings.store, lambda scope: None, service.settings.dashboard_hide,
        service.action_log, service.clock, sessions=Sessions(service, key), admit=admit,
        address=service.addresses.of, slow_reads=service.slow_reads,
    )  # fmt: skip
