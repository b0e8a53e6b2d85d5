"""Chromium, and the dashboard in a process of its own."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """Start a browser with an empty profile."""
    options = webdriver.ChromeOptions()
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "hide-scrollbars",
        "lang=en",
        f"user-data-dir={folder}/profile",
    ):
        options.add_argument(f"--{flag}")
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    driver.set_script_timeout(120)
    try:
        yield driver
    finally:
        driver.quit()


def look_like(browser: webdriver.Chrome, *, scheme: str = "light", width: int = 1_280) -> None:
    """Have the browser prefer a color scheme, and be as wide as a device."""
    device = {"width": width, "height": 860, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def picture(browser: webdriver.Chrome, path: Path, longest: int = 1_000) -> None:
    """Write the whole page as a PNG, down to `longest` pixels."""

    def laid_out(browser: webdriver.Chrome) -> dict[str, int] | None:
        size: dict[str, int] = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})[
            "cssContentSize"
        ]
        return size if size["width"] else None

    size = WebDriverWait(browser, 60, 0.05).until(laid_out)
    assert size is not None
    clip = {
        "x": 0,
        "y": 0,
        "width": size["width"],
        "height": min(size["height"], longest),
        "scale": 1,
    }
    taken = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def dashboard(store: str, *options: str, folder: Path | None = None) -> Iterator[str]:
    """Run `bide dashboard` as the user ann, in a folder; provide its URL."""
    with dashboard_process(store, *options, folder=folder) as (base, _):
        yield base


@contextmanager
def dashboard_process(
    store: str, *options: str, folder: Path | None = None
) -> Iterator[tuple[str, int]]:
    """Run `bide dashboard`; provide its URL and its process id."""
    command = [sys.executable, "-m", "bide", "dashboard", store, "--port", "0", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BIDE_")}
    environment["LOGNAME"] = "ann"
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, text=True, cwd=folder
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()  # ends with the process, if it cannot start
        assert "http://127.0.0.1:" in line, line
        yield line.split()[-1], process.pid
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()
