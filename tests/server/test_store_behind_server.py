"""A server whose store is behind another server."""

from pathlib import Path
from typing import Any

import pytest

from bide.model.errors import InvalidArgument
from bide.server.settings import Settings
from tests.server.client import Q
from tests.server.conftest import Serve
from tests.server.test_processes import run


def test_it_is_ready_and_works(serve: Serve) -> None:
    client = serve(store=serve().url)
    assert client.get("/readyz").json == {"status": "ready"}
    assert client.put(f"{Q}/messages/m", {"body": 1}).status == 201
    assert client.post(f"{Q}/claim").json["messages"][0]["id"] == "m"
    told = client.get("/metrics").data.decode()
    assert "bide_store_up 1.0" in told
    assert 'bide_queue_messages{queue="orders",state="leased"} 1.0' in told


def test_it_is_not_ready_while_the_other_refuses_it(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = serve(auth="required")
    monkeypatch.setenv("BIDE_TOKEN", make_token("shop", "produce"))
    told = serve(store=behind.url).get("/readyz")
    assert told.status == 503
    assert "no right 'read'" in told.json["reason"]
    monkeypatch.setenv("BIDE_TOKEN", make_token("shop", "read"))
    assert serve(store=f"{behind.url}/?timeout=9").get("/readyz").json == {"status": "ready"}


def test_subscriptions_and_tokens_are_kept_by_the_other(serve: Serve, tmp_path: Path) -> None:
    behind = serve()
    client = serve(store=behind.url)
    assert "at its own /v1/subscriptions" in client.get("/v1/subscriptions").problem["detail"]
    done = run(tmp_path, "token", "create", "--scope", "read", "--url", behind.url)
    assert done.returncode == 2
    assert "use the URL of the store that it serves" in done.stderr


@pytest.mark.parametrize("more", [{"auth": "required"}, {"host": "0.0.0.0"}])
def test_it_cannot_ask_for_tokens(more: dict[str, Any]) -> None:
    settings = Settings(store="http://:secret@127.0.0.1:8642", **more)
    with pytest.raises(InvalidArgument, match="behind another server") as refused:
        settings.check()
    assert "secret" not in str(refused.value)


def test_check_finds_it_fit(serve: Serve, tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--check", "--port", "0", "--store", serve().url)
    assert (done.returncode, done.stderr) == (0, "")
