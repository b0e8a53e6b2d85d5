"""The sessions of a dashboard, in a file that the processes of its server share.

A session that is not in the table has ended. The table has a fixed size: each token has a part of
it, which a few tokens share, and a few sessions there.
"""

import hashlib
import os
import secrets
import struct

from bide.server.problem import Problem
from bide.server.shared_state import SharedFile

PARTS = 256

PLACES = 64
"""Places for sessions in a part."""

SESSIONS = 16
"""Sessions of a token: one more ends the oldest."""

_RECORD = struct.Struct("=16s16sq")
"""A session, the token that began it, and when it ends, in Unix milliseconds."""

_PART = PLACES * _RECORD.size


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
            until: when it ends.

        Raises:
            Problem: the part of the table is full of sessions of other tokens.
        """
        owner = hashlib.blake2b(token.encode(), digest_size=16).digest()
        part = owner[0] % PARTS
        with self._file.locked() as file:
            data = os.pread(file, _PART, part * _PART).ljust(_PART, b"\0")
            records = list(enumerate(_RECORD.iter_unpack(data)))
            own = [(end, place) for place, (_, of, end) in records if of == owner and end > now]
            free = [place for place, (_, _, end) in records if end <= now]
            if len(own) >= SESSIONS:
                _, place = min(own)
            elif free:
                place = free[0]
            else:
                raise Problem(
                    "too-many-open",
                    "there are too many sessions of the dashboard; log out in some, or wait until "
                    "some have ended",
                )
            session = secrets.token_bytes(16)
            at = part * PLACES + place
            os.pwrite(file, _RECORD.pack(session, owner, until), at * _RECORD.size)
        return f"{at}-{session.hex()}"

    def has(self, name: str, now: int) -> bool:
        """Tell whether there is a session of this name."""
        place, session = _read(name)
        if place is None:
            return False
        with self._file.locked() as file:
            data = os.pread(file, _RECORD.size, place * _RECORD.size)
        if len(data) < _RECORD.size:
            return False
        known, _, until = _RECORD.unpack(data)
        return secrets.compare_digest(known, session) and until > now

    def end(self, name: str, now: int) -> None:
        """End a session."""
        place, _ = _read(name)
        if place is not None and self.has(name, now):
            with self._file.locked() as file:
                os.pwrite(file, bytes(_RECORD.size), place * _RECORD.size)


def _read(name: str) -> tuple[int | None, bytes]:
    """Return the place and the secret of a session; no place for what is not a name of one."""
    place, _, session = name.partition("-")
    digits = place.isascii() and place.isdecimal() and len(place) < 6
    if not digits or int(place) >= PARTS * PLACES or len(session) != 32:
        return None, b""
    try:
        return int(place), bytes.fromhex(session)
    except ValueError:
        return None, b""
