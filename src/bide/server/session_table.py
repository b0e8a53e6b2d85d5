"""The sessions of a dashboard, in a file that the processes of its server share.

A session that is not in the table has ended. The table has a fixed size: each token has a part of
it, which a few tokens share, and a few sessions there.
"""

import hashlib
import os
import secrets
import struct
from typing import NamedTuple

from bide.server.problem import Problem
from bide.server.shared_state import SharedFile

PARTS = 256

PLACES_PER_PART = 64
"""Places for sessions in a part."""

SESSIONS_PER_TOKEN = 16
"""Sessions of a token: one more ends the oldest."""

_RECORD = struct.Struct("=16s16sq")
"""The fields of a `DashboardSession` in the file."""


class DashboardSession(NamedTuple):
    """What the table has of a session; all zeros where there is none."""

    secret: bytes
    owner: bytes
    """The digest of the id of the token that began it."""
    until: int
    """When it ends, in Unix milliseconds."""


_PART_SIZE = PLACES_PER_PART * _RECORD.size


class SessionTable:
    """Which sessions there are. A session is named by its place and a secret of 32 hex digits.

    Args:
        file: the file.
    """

    def __init__(self, file: SharedFile) -> None:
        self._file = file

    def begin(self, token: str, now: int, until: int) -> str:
        """Begin a session, and return its name.

        Args:
            token: the id of the token.
            now: the time, in Unix milliseconds.
            until: when the session ends, in Unix milliseconds.

        Raises:
            Problem: the part of the table is full of sessions of other tokens.
        """
        owner = hashlib.blake2b(token.encode(), digest_size=16).digest()
        part = owner[0] % PARTS
        with self._file.locked() as file:
            data = os.pread(file, _PART_SIZE, part * _PART_SIZE).ljust(_PART_SIZE, b"\0")
            sessions = [DashboardSession(*fields) for fields in _RECORD.iter_unpack(data)]
            places = range(PLACES_PER_PART)
            free_places = [place for place in places if sessions[place].until <= now]
            own_places = [
                place
                for place in places
                if sessions[place].owner == owner and sessions[place].until > now
            ]
            if len(own_places) >= SESSIONS_PER_TOKEN:
                place = min(own_places, key=lambda own_place: sessions[own_place].until)
            elif free_places:
                place = free_places[0]
            else:
                raise Problem(
                    "too-many-open",
                    "there are too many sessions of the dashboard; log out in some, or wait until "
                    "some have ended",
                )
            session = DashboardSession(secrets.token_bytes(16), owner, until)
            place_in_table = part * PLACES_PER_PART + place
            os.pwrite(file, _RECORD.pack(*session), place_in_table * _RECORD.size)
        return f"{place_in_table}-{session.secret.hex()}"

    def has(self, name: str, now: int) -> bool:
        """Tell whether there is a session of this name."""
        place, secret = _parsed(name)
        if place is None:
            return False
        with self._file.locked() as file:
            data = os.pread(file, _RECORD.size, place * _RECORD.size)
        if len(data) < _RECORD.size:
            return False
        session = DashboardSession(*_RECORD.unpack(data))
        return secrets.compare_digest(session.secret, secret) and session.until > now

    def end(self, name: str, now: int) -> None:
        """End a session."""
        place, _ = _parsed(name)
        if place is not None and self.has(name, now):
            with self._file.locked() as file:
                os.pwrite(file, bytes(_RECORD.size), place * _RECORD.size)


def _parsed(name: str) -> tuple[int | None, bytes]:
    """Return the place and the secret of a session; no place for what is not a name of one."""
    place, _, secret = name.partition("-")
    is_number = place.isascii() and place.isdecimal() and len(place) < 6
    if not is_number or int(place) >= PARTS * PLACES_PER_PART or len(secret) != 32:
        return None, b""
    try:
        return int(place), bytes.fromhex(secret)
    except ValueError:
        return None, b""
