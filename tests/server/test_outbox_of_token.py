"""An outbox whose forwarder has a token that allows less than the program asks for."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.outbox import forwarder as module
from bide.outbox.forwarder import Forwarder, table_of
from bide.testing.hooks import lane_of
from tests.server.conftest import Serve


def test_what_a_token_denies_waits_and_the_other_queues_go_on(
    serve: Serve, make_token: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = serve(auth="required").port
    weak, strong = (make_token("shop", rights=rights) for rights in (["put"], ["admin"]))

    def queue(name: str, token: str) -> bide.Queue:
        return bide.Queue(name, f"http://:{token}@127.0.0.1:{port}")

    url = f"sqlite:///{tmp_path}/shop.db"
    with (
        queue("mails", weak) as mails,
        queue("orders", weak) as orders,
        queue("mails", strong) as all_mails,
        queue("orders", strong) as all_orders,
        closing(table_of(url)) as table,
        closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
    ):
        all_mails.put(1, id="old", delay="1h")
        mails.cancel("old", within=shop)
        for number in range(700):  # more than a batch
            mails.cancel(f"none-{number}", within=shop)
        orders.put(2, id="a", delay="1h", within=shop)
        mails.put(3, id="new", delay="1h", within=shop)
        shop.commit()
        with pytest.raises(bide.AccessDenied, match="'change'"):
            Forwarder(lambda: table_of(url), lane_of(orders)).run_once()
        assert [message.id for message in all_orders.scan()] == ["a"]
        assert [message.id for message in all_mails.scan()] == ["old"]
        assert len(table.read(1_000)) == 702

        monkeypatch.setattr(module, "POLL", 0)  # it tries them again
        assert Forwarder(lambda: table_of(url), lane_of(all_orders)).run_once()
        assert [message.id for message in all_mails.scan()] == ["new"]
        assert table.read(1) == []
