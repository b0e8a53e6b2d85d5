"""Ten real browsers, each a Chromium with a profile of its own: `python -m ... URL`.

Each line of the input opens the dashboard's overview in all of them ("show") or closes it ("hide");
a line of the output says that each page has asked for its next state. They run at the lowest
priority: ten browsers on two cores would else be what is measured.
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import WebDriverWait

from benchmarks.dashboard.processor import be_last
from tests.system.dashboard.chromium import chromium

__all__ = ["BROWSERS"]

BROWSERS = 10

BOUND = 60.0
"""Seconds that a page may take."""

_ASKED = """
return performance.getEntriesByType('resource').filter(one => one.initiatorType == 'fetch').length
"""


def main(base: str) -> None:
    """Obey the input until it ends."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bide-browsers-")))
        browsers = []
        for number in range(BROWSERS):
            own = folder / str(number)
            own.mkdir()
            browsers.append(stack.enter_context(chromium(own)))
        be_last(os.getpid())
        print("started", flush=True)
        for line in sys.stdin:
            for browser in browsers:
                browser.get(base if line == "show\n" else "about:blank")
            if line == "show\n":
                for browser in browsers:
                    WebDriverWait(browser, BOUND, 0.2).until(_asked)
            print("done", flush=True)


def _asked(browser: Chrome) -> int:
    """Return how often the page has asked for its next state."""
    return int(browser.execute_script(_ASKED))


if __name__ == "__main__":
    main(*sys.argv[1:])
