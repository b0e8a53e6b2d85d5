"""Say what is wrong with the store, without where it is on the server's machine."""

import logging
import re
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bide.engines.registry import mask
from bide.model.errors import BideError, StoreError

LOG_EVERY = 10.0
"""Seconds after which the same error of the store is logged again."""

_PATH = re.compile(r"(?<![\w/.:<])/[^\s/:;,()'\"]+(?:/[^\s/:;,()'\"]+)+")
"""An absolute path of at least two parts."""

_log = logging.getLogger("bide.server")


class ClientText:
    """Turn errors into text for clients. The server's log has the text in full.

    Args:
        store: the URL of the store.
    """

    def __init__(self, store: str) -> None:
        parts = urlsplit(store)
        path = Path(unquote(parts.path.removeprefix("/" * (parts.scheme == "sqlite")))).absolute()
        self._places = [(mask(store), "the store"), (str(path), "the store")]
        if path.parent != path and str(path.parent) != "/":
            self._places.append((str(path.parent), "the folder of the store"))
        self._logged: tuple[str, float] = "", 0.0

    def of(self, error: BideError) -> str:
        """Return the text of an error; for one of the store, without its place."""
        text = str(error)
        return self.without_places(text) if isinstance(error, StoreError) else text

    def without_places(self, text: str) -> str:
        """Return a text without the place of the store and other paths; log it if it had any."""
        told = text
        for place, words in self._places:
            told = told.replace(place, words)
        told = _PATH.sub("...", told)
        if told != text:
            self._log(text)
        return told

    def _log(self, text: str) -> None:
        before, at = self._logged
        now = time.monotonic()
        if text != before or now - at >= LOG_EVERY:
            self._logged = text, now
            _log.warning("%s", text)
