"""A tenant chooses the broker of a subscription: it may be no broker, and it may be hostile."""

import asyncio
import socket

import pytest
from pamqp import commands, frame

from bide.clock import SYSTEM_CLOCK
from bide.targets.amqp import parse
from bide.targets.http.addresses import AddressGate
from bide.targets.rabbitmq.broker import LOST, Broker, Refused

FRAME = b"\x01\x00\x00\xff\xff\xff\xff"
"""The beginning of a frame of a method, of 4 GiB."""


def broker(host: str, port: int = 5672, gate: AddressGate | None = None) -> Broker:
    return Broker(parse(f"amqp://{host}:{port}/?exchange=x"), SYSTEM_CLOCK, gate)


@pytest.mark.parametrize("start", [FRAME, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_frame_without_end_is_not_kept(start: bytes) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            await reader.readexactly(8)
            writer.write(start)
            while sent < 64 << 20:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
        except OSError:
            pass  # the client has closed the connection
        finally:
            writer.close()

    async def story() -> None:
        server = await asyncio.start_server(flood, "127.0.0.1", 0)
        one = broker("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(LOST):
            await one.channel()
        await one.close()
        server.close()
        await server.wait_closed()

    asyncio.run(story())
    assert sent < 32 << 20


def test_a_limit_for_frames_that_would_make_millions_of_a_body_is_refused() -> None:
    answers = [
        commands.Connection.Start(server_properties={}, mechanisms="PLAIN", locales="en_US"),
        commands.Connection.Tune(channel_max=10, frame_max=9, heartbeat=0),
        commands.Connection.OpenOk(),
    ]

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.read(4096)
            writer.write(frame.marshal(answer, 0))
        await reader.read()
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        one = broker("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(Refused, match="frames of 9 bytes"):
            await one.channel()
        await one.close()
        server.close()
        await server.wait_closed()

    asyncio.run(story())


def test_a_private_host_and_an_unknown_one_are_refused_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a stranger could find out which names exist in the network of the server."""

    def find(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def refused(one: Broker) -> str:
        with pytest.raises(Refused) as error:
            await one.channel()
        await one.close()
        return str(error.value)

    async def story() -> None:
        private = await refused(broker("127.0.0.1", gate=AddressGate()))
        monkeypatch.setattr(socket, "getaddrinfo", find)
        unknown = await refused(broker("mq.example", gate=AddressGate()))
        assert private.replace("127.0.0.1", "mq.example") == unknown

    asyncio.run(story())
