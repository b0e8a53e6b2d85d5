"""Noticing that a server lacks what another, or itself before a crash, had confirmed.

With each put, cancel, reschedule or other change by id or rule, except acks, the server says how
far its log (WAL) had come just before the commit. A standby that is promoted begins a new timeline
where its copy of the log ended: if that is before such a place, the change is lost. A server that
comes back with a shorter log has lost it as well.
"""

from collections.abc import Mapping
from typing import Any

import psycopg

from bide.engines import losses

_PLACE = """
SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
       pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint
"""


class Witness:
    """Remembers what was confirmed, over all connections to one store."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._timeline = 0
        self._confirmed: dict[str, int] = {}

    def confirmed(self, places: Mapping[str, int]) -> None:
        """Note the places in the log, by queue, behind which changes were committed."""
        self._confirmed.update(places)

    def compare(self, connection: psycopg.Connection[Any]) -> None:
        """Look, on a new connection, whether what was confirmed is there; report what is not."""
        recovery = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if recovery == (True,):
            return  # a standby: nothing can be put there
        row = connection.execute(_PLACE).fetchone()
        assert row is not None
        timeline, end, replayed = row
        # What was replayed last ends where the new timeline begins; a restart forgets it.
        reach = replayed if timeline > self._timeline and replayed is not None else end
        self._timeline = timeline
        for queue in [queue for queue, place in self._confirmed.items() if place > reach]:
            del self._confirmed[queue]
            losses.report(self._place, queue, 1)
