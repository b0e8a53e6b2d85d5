"""Tokens at a shell: what cannot be, and what helps."""

import asyncio
import getpass
import json
import os
import time
from pathlib import Path

import pytest

import bide
from bide.lane.shared import close_lane, open_lane
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing import FakeClock
from bide.testing.hooks import lane_of
from tests.system.cli.conftest import Bide
from tests.system.server.conftest import running


def test_a_namespace_that_cannot_be_is_named_as_it_was_given(run: Bide) -> None:
    for name in ("my shop", "a/b", "", "-x"):
        refused = run("token", "create", f"--namespace={name}", "--scope", "read")
        assert refused.exit_code == 2
        assert f"--namespace {name!r} is not a valid name of a namespace" in refused.stderr
        assert "/q" not in refused.stderr


def test_a_token_that_is_over_at_once_is_not_made(run: Bide) -> None:
    refused = run("token", "create", "--scope", "read", "--expires", "0")
    assert (refused.stdout, refused.exit_code) == ("", 2)
    assert "'--expires': must be longer than 0; never makes" in refused.stderr


def test_a_token_needs_rights_that_exist(run: Bide) -> None:
    assert "For example: --rights put,change" in run("token", "create").stderr
    wrong = run("token", "create", "--rights", "put,write")
    assert (wrong.exit_code, "--rights 'write' must be among put" in wrong.stderr) == (2, True)
    pattern = run("token", "create", "--rights", "put", "--queues", "or ders")
    assert "--queues 'or ders' is not a pattern" in pattern.stderr


def test_tokens_expire_after_90_days_unless_told_otherwise(run: Bide) -> None:
    made = run("token", "create", "--rights", "put", "--name", "backend")
    assert made.stdout.startswith("bide_")
    assert "bide token rotate backend" in made.stderr
    run("token", "create", "--rights", "read,bodies", "--queues", "a.*", "--expires", "never")
    dated, endless = (json.loads(line) for line in run("token", "list", "--json").stdout.split())
    assert dated["expires"] - dated["created"] == 90 * 86_400_000
    assert (endless["expires"], endless["used"]) == (None, None)
    assert (endless["rights"], endless["queues"]) == (["read", "bodies"], ["a.*"])
    again = run("token", "create", "--rights", "put", "--name", "backend")
    assert (again.exit_code, "the name of another token" in again.stderr) == (2, True)


def test_a_rotated_token_works_beside_the_former_for_a_while(run: Bide, url: str) -> None:
    create = ("token", "create", "--rights", "read", "--name", "shop", "--expires", "10d")
    old = run(*create).stdout.strip()
    rotated = run("token", "rotate", "shop", "--overlap", "1d")
    assert "the former token is accepted until" in rotated.stderr
    assert "in 10d" in rotated.stderr
    new = rotated.stdout.strip()
    clock = FakeClock(round(time.time() * 1_000))
    lane = open_lane(url)
    tokens = Tokens(lane, clock)

    def good(text: str) -> bool:
        return asyncio.run(tokens.caller(text)) is not None

    assert (good(old), good(new)) == (True, True)
    clock.advance(86_401)
    assert (good(old), good(new)) == (False, True)
    latest = run("token", "rotate", "shop").stdout.strip()
    assert (good(new), good(latest)) == (False, True)
    clock.advance(10 * 86_400)
    assert not good(latest)
    close_lane(lane)
    assert run("token", "rotate", "nobody").exit_code == 1
    assert run("token", "revoke", "shop").stdout == "shop is revoked\n"


def test_the_last_use_is_written_at_most_once_a_minute(url: str) -> None:
    clock = FakeClock()
    lane = open_lane(url)
    tokens = Tokens(lane, clock)
    text, made = tokens.create("shop", ["read"])
    uses = []
    for _ in range(5):
        assert asyncio.run(tokens.caller(text)) is not None
        asyncio.run(tokens.write_uses())
        uses.append(tokens.listed()[0].used)
        clock.advance(25)
    start = made.created
    assert uses == [start, start, start, start + 75_000, start + 75_000]
    assert asyncio.run(tokens.caller(text)) is not None
    clock.advance(100)
    assert asyncio.run(tokens.caller(text)) is not None
    tokens.revoke(made.id)
    asyncio.run(tokens.write_uses())
    assert tokens.listed() == []
    close_lane(lane)


@pytest.mark.parametrize(
    "words", [("list",), ("revoke", "4be0643f1d98"), ("create", "--scope", "read")]
)
def test_tokens_are_not_made_at_a_server(run: Bide, words: tuple[str, ...]) -> None:
    refused = run("token", *words, "--url", "http://:secret@127.0.0.1:1")
    assert refused.exit_code == 2
    assert "use the URL of the store that it serves" in refused.stderr
    assert "secret" not in refused.output


def test_a_token_that_may_not_look_hears_of_the_message_that_is_not_there(
    run: Bide, url: str, orders: bide.Queue
) -> None:
    orders.put(1)
    token = Tokens(lane_of(orders)).create(None, ["put", "change"])[0]
    with running(ServerApp(Settings(store=url))) as port:
        for queue in ("orders", "ordrs"):
            done = run("cancel", queue, "b", "--url", f"http://:{token}@127.0.0.1:{port}")
            assert (done.stdout.split("\t")[:3], done.exit_code) == (["b", "no", "gone"], 1)
            assert done.stderr == ""


def test_what_is_done_to_tokens_and_subscriptions_is_logged(run: Bide, tmp_path: Path) -> None:
    log = tmp_path / "actions.log"
    option = ("--action-log", str(log))
    made = run("token", "create", "--namespace", "shop", "--rights", "put", "--name", "a", *option)
    rotated = run("token", "rotate", "a", *option)
    run("token", "revoke", "a", "b", *option)
    hooks = ("subscription", "put", "hooks", "orders", "https://shop.example/?key=SECRET")
    kept = run(*hooks, *option)
    run("subscription", "pause", "hooks", "--reason", "SECRET", *option)
    run("subscription", "delete", "none", *option)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["act"], one["target"], one["result"]) for one in lines] == [
        ("createToken", "a", "done"),
        ("rotateToken", "a", "done"),
        ("revokeToken", "a", "done"),
        ("revokeToken", "b", "not-found"),
        ("putSubscription", "hooks", "done"),
        ("pauseSubscription", "hooks", "done"),
        ("deleteSubscription", "none", "not-found"),
    ]
    assert (lines[0]["namespace"], lines[4]["queue"]) == ("shop", "orders")
    assert {one["who"] for one in lines} == {getpass.getuser()}
    secrets = ["SECRET", *(one.stdout.strip().split("_", 2)[2] for one in (made, rotated))]
    for secret in [*secrets, kept.stdout.split()[-1]]:
        assert secret not in log.read_text()


def test_a_user_without_a_name_is_logged_by_number(
    run: Bide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as in a container of another user
    log = tmp_path / "actions.log"
    made = run("token", "create", "--rights", "put", "--action-log", str(log))
    assert made.exit_code == 0, made.output
    assert json.loads(log.read_text())["who"] == str(os.getuid())
