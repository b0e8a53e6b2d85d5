"""Images of deploy/, built in a bare Debian, and started as their containers would be."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bide.server.settings import PORT
from tests.system.deploy.images import (
    Image,
    bare_system,
    folder_on_disk,
    own_wheel,
    wheels_of_index,
)
from tests.system.deploy.test_containers import SERVER, SHOP, services

pytestmark = [pytest.mark.process, pytest.mark.full]

BOUND = 120.0

LOOPBACK = """
import fcntl, socket, struct, sys
with socket.socket() as any_socket:  # IFF_UP, by SIOCSIFFLAGS
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))
print("up", flush=True)
sys.stdin.read()
"""

ASK = """
import sys, urllib.request as r
print(r.urlopen(r.Request(sys.argv[2], method=sys.argv[1])).read())
"""


class Images:
    """The images, and a network of their own, in which their ports are free."""

    def __init__(self, server: Image, shop: Image, holder: "subprocess.Popen[str]") -> None:
        self.server = server
        self.shop = shop
        self._enter = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]

    @contextmanager
    def started(
        self, image: Image, words: Sequence[str], log: Path, **environment: str
    ) -> Iterator["Container"]:
        with log.open("w") as output:
            process = subprocess.Popen(
                [*self._enter, *image.words(words, **environment)], stdout=output, stderr=output
            )
        try:
            yield Container(process, log)
        finally:
            process.kill()  # and with it what it has started: --kill-child
            process.wait()

    def run(
        self, image: Image, words: Sequence[str], **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self._enter, *image.words(words, **environment)],
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )

    def healthy(self, image: Image) -> bool:
        """Carry out the health check of an image."""
        return self.run(image, image.health).returncode == 0

    def ask(self, method: str, url: str) -> str:
        done = self.run(self.shop, ["python", "-c", ASK, method, url])
        assert done.returncode == 0, done.stderr
        return done.stdout


class Container:
    """What runs in an image: process 1 of a namespace."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text()

    def says(self, text: str) -> None:
        deadline = time.monotonic() + BOUND
        while text not in self.text:
            assert self._process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.1)

    @property
    def first(self) -> int:
        """The id that process 1 has outside of its namespace."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(children.read_text())

    @property
    def user(self) -> str:
        status = Path(f"/proc/{self.first}/status").read_text()
        return next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1]

    def stop(self) -> int:
        """Send the signal to stop to process 1; return its exit code."""
        os.kill(self.first, signal.SIGTERM)
        return self._process.wait(BOUND)


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    with folder_on_disk() as folder:
        base = bare_system(folder)
        index = wheels_of_index(
            folder,
            "bide[server,postgres,redis,schedules,rabbitmq,oidc,secrets,metrics,fastapi]",
            "uvicorn",
        )
        project = folder / "project"
        shutil.copytree(SHOP.parent, project)
        own_wheel(project / "wheels")
        server = Image(folder / "server", base, index, SERVER, SERVER.parents[1])
        shop = Image(folder / "shop", base, index, project / SHOP.name, project)
        holder = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", LOOPBACK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "up\n"
            yield Images(server, shop, holder)
        finally:
            holder.kill()
            holder.communicate()


def test_what_is_deployed_starts_in_any_order_works_and_stops(
    images: Images, tmp_path: Path
) -> None:
    made = images.run(images.server, ["bide", "token", "create", "--scope", "admin"])
    assert made.returncode == 0, made.stderr
    store = f"http://:{made.stdout.strip()}@127.0.0.1:{PORT}"
    shop, server, app = images.shop, images.server, services()["app"]["command"]
    with (
        images.started(shop, shop.start, tmp_path / "worker", BIDE_URL=store) as worker,
        images.started(shop, app, tmp_path / "app", BIDE_URL=store) as web,
    ):
        worker.says("waiting for it")
        assert worker.user == shop.user == "10001"
        assert not images.healthy(shop)
        with images.started(server, server.start, tmp_path / "server") as served:
            served.says("listening on")
            worker.says("at work on")
            assert served.user == "10001"
            wait_until_healthy(images, server)
            wait_until_healthy(images, shop)
            web.says("Uvicorn running")
            order = "http://127.0.0.1:8000/orders/42"
            assert "delayed" in images.ask("PUT", f"{order}?delay=1h")
            assert "true" in images.ask("POST", f"{order}/paid")
            images.ask("PUT", "http://127.0.0.1:8000/orders/43?delay=100ms")
            worker.says("order 43 has timed out")
            assert worker.stop() == 0
            assert web.stop() == 0
            assert served.stop() == 0


def wait_until_healthy(images: Images, image: Image) -> None:
    deadline = time.monotonic() + BOUND
    while not images.healthy(image):
        assert time.monotonic() < deadline


def test_a_container_that_still_waits_stops_at_once(images: Images, tmp_path: Path) -> None:
    store = "postgresql://shop@127.0.0.1:1/shop"
    for name, image in (("worker", images.shop), ("server", images.server)):
        with images.started(image, image.start, tmp_path / name, BIDE_URL=store) as container:
            container.says("waiting for it")
            assert container.stop() == 0


def test_nothing_of_the_machine_is_in_an_image(images: Images) -> None:
    assert not (images.server.root / "src").exists()
    inside = images.shop.root / "srv/shop"
    assert sorted(path.name for path in inside.iterdir()) == [
        ".dockerignore",
        "requirements.txt",
        "shop.py",
        "wheels",
    ]
