"""Take the pictures of the documentation: `make screenshots`.

Needs Chromium, and a font with Chinese characters, such as Debian's fonts-droid-fallback.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bide
from tests.system.dashboard.chromium import chromium, dashboard, look_like, picture
from tests.system.dashboard.scene import beat, set_past, set_scene

TARGET = Path(__file__).parents[3] / "docs" / "_static" / "dashboard"

PICTURES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("overview", "", {}),
    ("overview-dark", "", {"scheme": "dark"}),
    ("queue", "queue?queue=orders", {}),
    ("message", "message?queue=mail&id=mail-5", {}),
    ("dead", "dead", {}),
)
"""The name of each picture, its page, and how the browser looks."""


def main() -> None:
    """Take the pictures."""
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _demo(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/shop.db"
        set_scene(store)
        set_past(store)
        hidden = ("--hide", "card", "--hide", "authorization")
        with dashboard("sqlite:///shop.db", *hidden, folder=Path(folder)) as base:
            with chromium(Path(folder)) as browser:
                browser.get(base)
                _work(store, 20)
                for name, page, look in PICTURES:
                    look_like(browser, **look)
                    browser.get(base + page)
                    picture(browser, TARGET / f"{name}.png", 900 if look else 1_000)


def _demo(folder: Path) -> None:
    """Take the picture of the README: the overview while `bide demo` runs."""
    command = [
        sys.executable,
        "-m",
        "bide",
        "demo",
        "--dashboard",
        "--orders",
        "20000",
        "--seconds",
        "60",
    ]
    environment = {**os.environ, "LOGNAME": "ann"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    try:
        base = process.stdout.readline().split()[-1]
        with chromium(folder) as browser:
            look_like(browser)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:  # each look adds to the chart of rates
                browser.get(base)
                time.sleep(2)
            picture(browser, TARGET / "demo.png", 900)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def _work(store: str, seconds: int) -> None:
    """Put and ack messages for a while, so that there are rates to be shown."""
    with bide.Queue("orders", store) as orders:
        for step in range(seconds):
            orders.put_many(range(30 + step % 7 * 4))
            orders.ack(orders.claim(25 + step % 5 * 6))
            beat(store)
            time.sleep(1.0)


if __name__ == "__main__":
    main()
