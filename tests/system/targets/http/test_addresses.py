"""Where a subscription must not lead: judged by the address that is really connected to."""

import asyncio
import socket
from typing import Any

import pytest

from bide.model.errors import InvalidArgument
from bide.targets.http.addresses import AddressGate, NotPublic, is_own
from tests.system.targets.http.environment import LOOPBACK, Stage
from tests.system.targets.http.receiver import answer, receiver

PUBLIC = ["93.184.216.34", "1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001::1"]

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.254",
    "127.0.0.1",
    "127.8.8.8",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd00:ec2::254",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "2001::1",
    "2001:10::1",
    "100::1",
    "3fff::1",
    "64:ff9b:1::1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:7f00:1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::a9fe:a9fe",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_let_through(address: str) -> None:
    assert AddressGate().lets(address, 443)


@pytest.mark.parametrize("port", [1, 22, 25, 53, 111, 445, 1023])
def test_low_ports_of_public_hosts_are_refused(port: int) -> None:
    gate = AddressGate()
    assert not gate.lets("8.8.8.8", port)
    with pytest.raises(NotPublic, match="port is not public"):
        asyncio.run(gate.addresses("hook.example", port, Names(["8.8.8.8"])))
    for url in (f"https://hook.example:{port}/", f"amqp://hook.example:{port}/"):
        with pytest.raises(InvalidArgument, match=f"port {port};"):
            gate.check(url)


@pytest.mark.parametrize("port", [80, 443, 1024, 5672, 8443, 65535])
def test_ports_of_the_web_and_those_of_applications_are_let_through(port: int) -> None:
    gate = AddressGate()
    assert gate.lets("8.8.8.8", port)
    gate.check(f"http://hook.example:{port}/")


def test_a_public_address_of_this_machine_is_refused() -> None:
    mine = {"8.8.8.8", "2606:4700:4700::1111"}
    gate = AddressGate(is_own=mine.__contains__)
    assert not gate.lets("8.8.8.8", 443)
    assert not gate.lets("::ffff:8.8.8.8", 443)
    assert not gate.lets("2606:4700:4700::1111", 443)
    assert gate.lets("1.1.1.1", 443)
    with pytest.raises(InvalidArgument, match="not public"):
        gate.check("http://8.8.8.8/")
    assert AddressGate(["8.8.8.8/32"], is_own=mine.__contains__).lets("8.8.8.8", 22)


def test_the_addresses_of_this_machine_are_known() -> None:
    assert is_own("127.0.0.1")
    assert is_own("127.1.2.3")
    assert not is_own("192.0.2.1")  # kept for documentation
    assert not is_own("2001:db8::1")


@pytest.mark.parametrize("address", ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"])
def test_an_address_that_leads_to_a_public_one_is_let_through(address: str) -> None:
    assert AddressGate().lets(address, 80)


@pytest.mark.parametrize("address", PRIVATE)
def test_all_others_are_refused(address: str) -> None:
    gate = AddressGate()
    assert not gate.lets(address, 443)
    with pytest.raises(NotPublic):
        asyncio.run(gate.addresses("hook.example", 443, Names([address])))


def test_networks_can_be_allowed_and_nothing_beside_them() -> None:
    gate = AddressGate(["10.1.0.0/16", "fd00:1::/32"])
    assert gate.lets("10.1.2.3", 22)
    assert gate.lets("::ffff:10.1.2.3", 8080)
    assert gate.lets("fd00:1::7", 80)
    assert not gate.lets("10.2.0.1", 80)
    assert not gate.lets("fd00:2::7", 80)


class Names:
    """Tells what a test wants it to; each look-up takes the next answer."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if not (found := self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return found


async def refused(stage: Stage, url: str, **options: Any) -> str:
    """Return with what a message fails whose subscription leads to a URL."""
    await stage.subscribe(url)
    async with stage.pushing(**{"gate": AddressGate(), **options}):
        await stage.put(1)
        await stage.delayed(1)
    error = (await stage.find("m0")).error
    assert error is not None
    return error


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1"],
)
def test_no_way_to_write_this_machine_leads_to_it(stage: Stage, host: str) -> None:
    async def story() -> None:
        async with receiver() as it:
            error = await refused(stage, f"http://{host}:{it.port}/")
            assert error.startswith(
                "no connection: the host is unknown or its address or port is not pub"
            )
            assert it.connections == 0

    stage.play(story())


@pytest.mark.parametrize("network", ["127.0.0.0/8", "::1/128"])
def test_the_name_of_this_machine_is_allowed_with_one_of_its_networks(network: str) -> None:
    AddressGate([network]).check("http://localhost:9000/")


def test_the_metadata_service_of_clouds_is_refused(stage: Stage) -> None:
    async def story() -> None:
        error = await refused(stage, "http://169.254.169.254/latest/meta-data/")
        assert "not public" in error
        assert "169.254" not in error  # what names lead to here is nobody's business

    stage.play(story())


def test_a_name_that_leads_to_a_private_address_is_refused(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            names = Names(["127.0.0.1", "::1"])
            error = await refused(stage, f"http://hook.example:{it.port}/", lookup=names)
            assert "not public" in error
            assert names.asked == ["hook.example"]
            assert it.connections == 0

    stage.play(story())


def test_a_private_name_and_an_unknown_one_fail_with_the_same_words(stage: Stage) -> None:
    """Else a stranger could find out which names exist in the network of the server."""

    async def story() -> None:
        names = Names(["10.1.2.3"], [])
        private = await refused(stage, "http://hook.example/", lookup=names)
        await stage.put(2, id="m1")
        async with stage.pushing(gate=AddressGate(), lookup=names):
            await stage.delayed(2)
        assert (await stage.find("m1")).error == private
        assert names.answers == [[]]

    stage.play(story())


def test_what_is_judged_is_what_is_connected_to(stage: Stage) -> None:
    """A name that is public at the first look-up and private at the next is not looked up twice."""

    async def story() -> None:
        async with receiver() as it:
            names = Names(["127.0.0.1"], ["169.254.169.254"])
            await stage.subscribe(f"http://hook.example:{it.port}/")
            async with stage.pushing(lookup=names):
                await stage.put(1)
                await stage.acked(1)
            assert names.asked == ["hook.example"]
            assert it.got[0].headers["host"] == f"hook.example:{it.port}"

    stage.play(story())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(stage: Stage, status: int) -> None:
    async def story() -> None:
        async with receiver() as inside:
            async with stage.at_work() as (it, _):
                it.answers(answer(status, location=inside.url))
                await stage.put(1)
                await stage.delayed(1)
            assert inside.connections == 0
            assert len(it.got) == 1
        error = (await stage.find("m0")).error
        assert error is not None
        assert "redirects are not followed" in error

    stage.play(story())


def test_a_redirect_to_the_metadata_service_is_not_followed(stage: Stage) -> None:
    async def story() -> None:
        names = Names(["127.0.0.1"])
        async with stage.at_work(options={"lookup": names, "gate": AddressGate(LOOPBACK)}) as (
            it,
            _,
        ):
            it.answers(answer(302, location="http://169.254.169.254/latest/meta-data/"))
            await stage.put(1)
            await stage.delayed(1)
        assert names.asked == ["127.0.0.1"]

    stage.play(story())


def test_proxies_of_the_environment_are_not_used(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with receiver() as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            monkeypatch.setenv("http_proxy", proxy.url)
            async with stage.at_work() as (it, _):
                await stage.put(1)
                await stage.acked(1)
            assert proxy.connections == 0
            assert len(it.got) == 1

    stage.play(story())
