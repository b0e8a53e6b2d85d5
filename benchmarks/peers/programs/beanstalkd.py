"""beanstalkd, by way of greenstalk: a job with a delay of whole seconds."""

import json
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import greenstalk

from benchmarks.peers.programs.protocol import Call, Peer, hold, note, run, store

__all__ = ["Beanstalkd"]


def _client() -> greenstalk.Client:
    host, _, port = store().partition(":")
    return greenstalk.Client((host, int(port)))


class Beanstalkd(Peer):
    """A connection."""

    def __init__(self) -> None:
        self._client = _client()

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each; the delay is rounded up to whole seconds, so that none is early."""
        return [
            self._client.put(
                json.dumps(call.arguments), delay=max(0, math.ceil(call.due - time.time()))
            )
            for call in calls
        ]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Delete by id."""
        for id in keys:
            self._client.delete(id)

    def work(self) -> None:
        """Reserve and delete one after the other: there is no worker beside the protocol."""
        while True:
            job = self._client.reserve()
            number, due, seconds, _ = json.loads(job.body)
            hold(seconds)
            note(number, due)
            self._client.delete(job)


if __name__ == "__main__":
    run(Beanstalkd)
