"""Pauses that end by themselves, by the clock of each kind of store."""

import pytest

import bide
from tests.stores_of_each_kind import STORES, url_of

PATIENCE = 60
"""Seconds that a claim waits for what is sure to come."""


@pytest.mark.parametrize("kind", STORES)
def test_a_claim_that_waits_gets_messages_when_the_pause_ends(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with url_of(kind, request) as url, bide.Queue("mails", url) as mails:
        mails.put(1)
        until = mails.pause(lasting="1500ms").paused_until
        assert until is not None
        counts = mails.counts()
        assert (counts.paused, counts.paused_until) == (True, until)
        (delivery,) = mails.claim(wait=PATIENCE)
        assert delivery.claimed >= until
        counts = mails.counts()
        assert (counts.paused, counts.paused_until) == (False, None)
        delivery.ack()
