"""Messages that the client library cannot decode, or that are huge, must not end the process.

aiormq decodes frames while it reads, and fails for text that is not UTF-8, for impossible times and
for deeply nested headers. Brokers accept them. The connection would end each time that such a
message is delivered, and nothing behind it would ever be taken. So its properties are left out
here, and the intake rejects it. The same goes for the body of a huge message, which aiormq would
keep in memory. A frame that announces more than the largest body ends the connection: a broker may
be hostile, and aiormq would keep up to 4 GiB of it.
"""

import asyncio

from pamqp.constants import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from pamqp.header import ContentHeader

from bide.model.limits import MAX_AMQP_BODY

DELIVER = b"\x00\x3c\x00\x3c"
"""Basic.Deliver. Then come: consumer tag (short text), delivery tag (8 bytes), whether it comes
again (1 byte), exchange and routing key (short texts)."""

PIECE = 65_536
"""How many bytes are read at a time of what is left out."""

FIXED = 12
"""How many bytes are before the properties of a content header; the last 8 are the body's size."""


class FrameReader(asyncio.StreamReader):
    """Reads frames as aiormq does: one byte, the kind; six, with the size; the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: set[int] = set()
        """The delivery tags of messages that cannot be decoded, or are huge."""
        self._step = 0
        self._started = False
        self._kind = 0
        self._tag = 0
        self._skip = 0
        """How many bytes of such a body are still to come."""

    async def readexactly(self, n: int) -> bytes:
        """Return so many bytes, which can be decoded if they are a frame's payload.

        Raises:
            ConnectionError: the frame is larger than any that a broker needs to send.
        """
        data = await super().readexactly(n)
        while self._step == 0 and self._skip and data[0] == FRAME_BODY:
            size = int.from_bytes((await super().readexactly(6))[2:])
            await self._pass_over(size + 1)
            self._skip -= size
            data = await super().readexactly(n)
        if self._step == 0:
            self._kind = data[0]
        elif self._step == 1:
            self._check_size(data)
        elif self._step == 2 and self._kind == FRAME_METHOD and data.startswith(DELIVER):
            data = self._delivered(data)
        elif self._step == 2 and self._kind == FRAME_HEADER:
            data = self._described(data)
        self._step = (self._step + 1) % 3
        return data

    def _check_size(self, data: bytes) -> None:
        speaks_another = not self._started and bytes((self._kind,)) + data[:3] == b"AMQP"
        self._started = True
        if not speaks_another and int.from_bytes(data[2:]) > MAX_AMQP_BODY:
            raise ConnectionError(f"the broker sends a frame of more than {MAX_AMQP_BODY:,} bytes")

    async def _pass_over(self, size: int) -> None:
        while size > 0:
            size -= len(await super().readexactly(min(size, PIECE)))

    def _delivered(self, data: bytes) -> bytes:
        tag = len(DELIVER) + 1 + data[len(DELIVER)]
        self._tag = int.from_bytes(data[tag : tag + 8])
        key = tag + 8 + 1 + 1 + data[tag + 8 + 1] + 1
        try:
            data[key:-1].decode()
        except UnicodeDecodeError:
            self.left_out.add(self._tag)
            return data[:key] + b"?" * (len(data) - key - 1) + data[-1:]
        return data

    def _described(self, data: bytes) -> bytes:
        size = int.from_bytes(data[FIXED - 8 : FIXED])
        if size <= MAX_AMQP_BODY and _decodes(data[:-1]):
            return data
        self.left_out.add(self._tag)
        self._skip = size
        return data[: FIXED - 8].ljust(len(data) - 1, b"\0") + data[-1:]


def _decodes(header: bytes) -> bool:
    try:
        ContentHeader().unmarshal(header)
    except Exception:  # noqa: BLE001  (whatever it is, aiormq would fail with it, too)
        return False
    return True
