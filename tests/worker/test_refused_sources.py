"""Sources that an app refuses, and their names."""

from datetime import datetime
from typing import Any

import pytest

import bide
from bide.worker.periodic.source import home_of
from tests.worker.source_app import (
    HOME,
)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (7, {}, r"must take \(after, before\), .*: 7 is not a callable object"),
        (lambda: [], {}, r"must take \(after, before\), the start and end of a window"),
        (lambda a, b, c: [], {}, "missing a required argument: 'c'"),
        (lambda a, b: [], {}, r"name='<lambda>' cannot be the name of a source"),
        (lambda a, b: [], {"name": "a:b"}, "name='a:b' cannot be"),
        (
            lambda a, b: [],
            {"name": "x" * 120},
            r"bide:source:orders:x+' is not a valid name of a queue",
        ),
        (lambda a, b: [], {"name": "x", "every": 0}, "every=0 must be 100 ms or longer"),
        (lambda a, b: [], {"name": "x", "every": "soon"}, "every='soon' is not a valid duration"),
        (lambda a, b: [], {"name": "x", "window": 0}, "window=0 is shorter than every"),
        (lambda a, b: [], {"name": "x", "back": -1}, "back=-1 is negative"),
        (lambda a, b: [], {"name": "x", "lease": 0}, "lease=0s must be between"),
        (lambda a, b: [], {"name": "x", "timeout": 0}, "timeout must be longer than 0"),
        (lambda a, b: [], {"name": "x", "retry": 3}, "retry=3 must be a bide.Backoff"),
        (lambda a, b: [], {"name": "x", "queue": "?"}, "is not a valid name of a queue"),
    ],
)
def test_what_cannot_be_is_refused_when_the_app_is_made(
    function: Any, options: dict[str, Any], said: str
) -> None:
    app = bide.App("memory://")
    given: dict[str, Any] = {"queue": "orders", "every": "1m", "window": "10m", **options}
    with pytest.raises(bide.InvalidArgument, match=said):
        app.source(given.pop("queue"), **given)(function)
    assert not app.queue_handlers


def test_a_name_is_taken_once() -> None:
    app = bide.App("memory://")

    @app.source("acme/orders", every="1m", window="10m")
    def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
        return []

    assert list(app.queue_handlers) == list(app.sources) == ["acme/bide:source:orders:unpaid"]
    assert home_of("orders", "unpaid") == HOME
    with pytest.raises(bide.InvalidArgument, match=r"already; give one source another name="):
        app.source("acme/orders", every="5m", window="10m")(unpaid)
    app.source("acme/orders", every="5m", window="10m", name="other")(unpaid)
