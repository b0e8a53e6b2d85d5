"""Push by several processes: they share the work, and hand it over when they stop or die."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import ServerProcess
from tests.targets.http.environment import LOOPBACK, PATIENCE, until
from tests.targets.http.push_server import Asking, Q, play
from tests.targets.http.receiver import Got, Receiver, answer


def settings(folder: Path, **more: Any) -> tuple[str, str]:
    """Write a file of settings, and return the arguments that name it."""
    told = {"push_networks": list(LOOPBACK), "push_lease": 5, **more}
    path = folder / "serve.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items()))
    return "--config", str(path)


@pytest.mark.process
def test_two_servers_share_the_work_and_one_takes_over_from_the_other(tmp_path: Path) -> None:
    options = settings(tmp_path)
    with ServerProcess(tmp_path, *options) as one, ServerProcess(tmp_path, *options) as two:

        async def story(it: Receiver) -> None:
            ask = Asking(two.port)
            secret = await ask.subscribe(it, concurrency=6, timeout="2m")
            await ask.put(*[f"a{number}" for number in range(300)])
            await ask.acked(300)
            assert len({got.id for got in it.got}) == len(it.got) == 300
            # As soon as they know of each other, each sends its share of six.
            count, by = 300, Counter[str]()
            deadline = time.monotonic() + PATIENCE
            while sorted(by.values()) != [3, 3]:
                assert time.monotonic() < deadline, by
                it.answers(answer(200))
                await ask.acked(count)
                gate = asyncio.Event()

                async def hold(got: Got, _: object, gate: asyncio.Event = gate) -> bytes:
                    await gate.wait()
                    return answer(200)

                it.script = hold
                await ask.put(*[f"{count}-{number}" for number in range(20)])
                await until(lambda: it.under_way >= 6)
                held = await ask("GET", f"{Q}/messages?state=leased")
                by = Counter(message["holder"] for message in held["messages"])
                if sorted(by.values()) != [3, 3]:
                    gate.set()
                    count += 20
            one.kill()
            gate.set()
            await ask.acked(count + 20)
            attempts = Counter(got.headers["bide-attempt"] for got in it.got)
            # One may have leased more that it did not get to send: their first attempt is lost.
            assert len({got.id for got in it.got}) == count + 20
            assert attempts.keys() == {"1", "2"}
            assert attempts["2"] == await ask.flow("lapsed") >= 3
            assert (await ask("GET", f"{Q}/audit"))["balanced"]
            for log in (one.text, two.text):
                assert "Traceback" not in log
                assert secret not in log

        play(story)


@pytest.mark.process
def test_several_processes_of_a_server_share_the_work(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, *settings(tmp_path), "--workers", "2") as server:

        async def story(it: Receiver) -> None:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=4)
            for batch in range(10):
                await ask.put(*[f"{batch}-{number}" for number in range(20)])
                os.kill(server.workers()[0], signal.SIGKILL) if batch == 5 else None
            await ask.acked(200)
            assert len({got.id for got in it.got}) == 200
            assert (await ask("GET", f"{Q}/audit"))["balanced"]

        play(story)


@pytest.mark.process
@pytest.mark.parametrize("grace", [20, 0.2])
def test_a_stop_finishes_what_is_under_way_or_hands_it_back(tmp_path: Path, grace: float) -> None:
    options = settings(tmp_path, grace=grace)

    async def story(it: Receiver) -> None:
        gate = asyncio.Event()

        async def hold(got: Got, _: object) -> bytes:
            await gate.wait()
            return answer(200)

        with ServerProcess(tmp_path, *options) as server:
            ask = Asking(server.port)
            it.script = hold
            await ask.subscribe(it, concurrency=2)
            await ask.put("a", "b", "c")
            await until(lambda: it.under_way == 2)
            server.process.send_signal(signal.SIGTERM)
            if grace > 1:
                await until(lambda: "s to finish" in server.text)
                gate.set()
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
            assert "Traceback" not in server.text
        it.answers(answer(200))
        with ServerProcess(tmp_path, *options) as server:
            ask = Asking(server.port)
            await ask.acked(3)
            again = [got.headers["bide-attempt"] for got in it.got]
            assert again == ["1"] * (3 if grace > 1 else 5)  # untouched: no attempt was lost
            assert await ask.flow("lapsed") == 0

    play(story)


@pytest.mark.process
def test_a_sigterm_to_all_processes_finishes_what_is_under_way(tmp_path: Path) -> None:
    """As systemd sends it: each process gets one from the supervisor as well."""

    async def story(it: Receiver) -> None:
        async def take_a_second(got: Got, _: object) -> bytes:
            await asyncio.sleep(1)
            return answer(200)

        it.script = take_a_second
        with ServerProcess(tmp_path, *settings(tmp_path, grace=20)) as server:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=1)
            await ask.put("a")
            await until(lambda: it.under_way == 1)
            (worker,) = server.workers()
            os.kill(worker, signal.SIGTERM)
            await until(lambda: "s to finish" in server.text)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        with ServerProcess(tmp_path, *settings(tmp_path, push=False)) as server:
            assert await Asking(server.port).flow("acked") == 1

    play(story)


@pytest.mark.process
def test_a_second_signal_hands_back_at_once(tmp_path: Path) -> None:
    async def story(it: Receiver) -> None:
        async def hang(got: Got, _: object) -> bytes:
            await asyncio.Event().wait()
            return b""

        it.script = hang
        with ServerProcess(tmp_path, *settings(tmp_path, grace=40)) as server:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=1)
            await ask.put("a")
            await until(lambda: it.under_way == 1)
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: "s to finish" in server.text)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        with ServerProcess(tmp_path, *settings(tmp_path, push=False)) as server:
            ask = Asking(server.port)
            found = await ask("GET", f"{Q}/messages/a")
            assert (found["state"], found["attempt"]) == ("ready", 0)

    play(story)


@pytest.mark.process
def test_a_hanging_receiver_leaves_descriptors_for_requests(tmp_path: Path) -> None:
    async def story(it: Receiver) -> None:
        async def hang(got: Got, _: object) -> bytes:
            await asyncio.Event().wait()
            return b""

        it.script = hang
        options = settings(tmp_path, grace=0.2)
        with ServerProcess(tmp_path, *options, descriptors=300) as server:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=1_000, timeout="5m")
            for batch in range(4):
                await ask.put(*[f"{batch}-{number}" for number in range(200)])
            await until(lambda: it.under_way >= 300 // 8)
            for _ in range(20):  # each on a connection of its own
                assert (await ask("GET", Q))["sizes"]["leased"] == it.under_way
            assert it.most <= 300 // 4
            assert "Too many open files" not in server.text

    play(story)
