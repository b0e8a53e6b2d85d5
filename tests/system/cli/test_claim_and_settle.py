"""`bide claim`, `ack`, `retry`, `bury`, `extend`, and the dead letters."""

import errno
import json
import os
from collections.abc import Callable

import pytest
from click.testing import Result

import bide
from bide.lane.shared import close_lane, open_lane
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.settings import Settings
from tests.system.server.conftest import running

Bide = Callable[..., Result]


def claimed(run: Bide, *arguments: str) -> list[list[str]]:
    lines = run("claim", "orders", *arguments).output.splitlines()
    return [line.split("\t") for line in lines]


def test_claim_prints_what_ack_wants(run: Bide, orders: bide.Queue) -> None:
    orders.put({"n": 1}, id="a")
    ((id, token, body),) = claimed(run)
    assert (id, body) == ("a", '{"n":1}')
    result = run("ack", "orders", id, token)
    assert (result.output, result.exit_code) == ("a\tacked\tgone\t\n", 0)
    assert run("ack", "orders", id, token).exit_code == 1
    assert orders.counts().flow.acked == 1


def test_claim_as_json(run: Bide, orders: bide.Queue) -> None:
    orders.put({"n": 1}, id="a")
    found = json.loads(run("claim", "orders", "--json").output)
    assert (found["id"], found["attempt"], found["state"]) == ("a", 1, "leased")
    assert found["token"] > 0
    assert found["lateness"] >= 0


def test_json_has_lengths_of_time_in_milliseconds(run: Bide, orders: bide.Queue) -> None:
    orders.put_many([1, 2], at=0)
    for more in ((), ("--exec", "sleep 0.01")):
        found = json.loads(run("claim", "orders", "--json", *more).output)
        assert found["lateness"] > 1_000_000_000_000  # since 1970
        assert isinstance(found["lateness"], int)
    assert found["took"] >= 10


def test_claim_finds_nothing_in_time(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, delay=60)
    assert run("claim", "orders").exit_code == 1
    assert run("claim", "orders", "--wait", "10ms").exit_code == 1


def test_claim_and_ack_at_once(run: Bide, orders: bide.Queue) -> None:
    orders.put_many(["x", "y"])
    result = run("claim", "orders", "-n", "5", "--ack", "--body")
    assert (sorted(result.output.splitlines()), result.exit_code) == (["x", "y"], 0)
    assert orders.counts().flow.acked == 2


def test_lines_of_claim_can_be_acked(run: Bide, orders: bide.Queue) -> None:
    orders.put_many(range(3))
    lines = run("claim", "orders", "-n", "2").output + run("claim", "orders", "--json").output
    result = run("ack", "orders", "-", stdin=lines)
    assert (result.exit_code, len(result.output.splitlines())) == (0, 3)
    assert orders.counts().flow.acked == 3
    bad = run("ack", "orders", "-", stdin="no tabs here\n")
    assert bad.exit_code == 2
    assert "line 1" in bad.stderr


def test_ids_of_all_characters_can_be_given_back(run: Bide, orders: bide.Queue) -> None:
    ids = ["\u0645\u06cc\u200c\u062e", "\U0001f469\u200d\U0001f4bb", "a\u202eb", "a\u2028b", "\xa0"]
    for id in ids:
        put = run("put", "orders", "1", "--id", id)
        assert put.output == f"{id}\n"
    assert run("ack", "orders", "-", stdin=run("claim", "orders", "-n", "9").output).exit_code == 0
    assert orders.counts().flow.acked == len(ids)


def test_retry_bury_and_extend(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    ((id, token, _),) = claimed(run)
    assert run("extend", "orders", id, token, "--lease", "1h").exit_code == 0
    message = orders.get("a")
    assert message is not None
    assert message.until is not None
    assert message.until - message.due > 3_000_000
    assert run("retry", "orders", id, token, "--reason", "closed").exit_code == 0
    assert run("extend", "orders", id, token).exit_code == 1
    ((id, token, _),) = claimed(run)
    assert run("bury", "orders", id, token, "--reason", "no\nuse").exit_code == 0
    buried = orders.get("a")
    assert buried is not None
    assert [failure.reason for failure in buried.failures] == ["closed", "no\nuse"]


def test_a_missing_token_is_explained(run: Bide) -> None:
    result = run("ack", "orders", "a")
    assert result.exit_code == 2
    assert "claim prints" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--exec", "true", "--ack"],
        ["--retry", "5s"],
        ["--loop"],
        ["--body"],
        ["--exec", "true", "--loop", "-n", "3"],
        ["--exec", ""],
        ["--exec", " "],
    ],
)
def test_options_of_claim_that_do_not_go_together(run: Bide, arguments: list[str]) -> None:
    assert run("claim", "orders", *arguments).exit_code == 2


def test_a_message_whose_command_cannot_begin_goes_back(
    run: Bide, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    orders.put(1, id="a")
    result = run("claim", "orders", "--exec", "true")
    assert (result.stderr, result.exit_code) == ("error: No space left on device\n", 3)
    message = orders.get("a")
    assert message is not None
    assert (message.state, message.attempt) == ("ready", 0)


def bury(orders: bide.Queue, *ids: str) -> None:
    for id in ids:
        orders.put(id, id=id)
        orders.claim()[0].bury(f"why {id}\nand more")


def test_dead_lists_and_shows(run: Bide, orders: bide.Queue) -> None:
    bury(orders, "a", "b")
    lines = [line.split("\t") for line in run("dead", "orders").output.splitlines()]
    assert [(id, attempts, error) for id, _, attempts, error in lines] == [
        ("a", "1", "why a"),
        ("b", "1", "why b"),
    ]
    assert run("dead", "list", "orders").output == run("dead", "orders").output
    assert len(run("dead", "list", "orders", "--json", "-n", "1").output.splitlines()) == 1
    shown = run("dead", "show", "orders", "a")
    assert shown.exit_code == 0
    assert "why a\\nand more" in shown.output
    found = json.loads(run("dead", "show", "orders", "a", "--json").output)
    assert found["failures"][0]["reason"] == "why a\nand more"


def test_dead_shows_only_dead_letters(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    result = run("dead", "show", "orders", "a")
    assert result.exit_code == 1
    assert "a is not a dead letter of orders" in result.stderr
    assert run("dead", "show", "orders", "b").exit_code == 1


@pytest.mark.parametrize("command", [["revive"], ["dead", "revive"]])
def test_revive(run: Bide, orders: bide.Queue, command: list[str]) -> None:
    bury(orders, "a", "b", "c")
    assert run(*command, "orders", "a").output == "a\trevived\tready\t\n"
    assert run(*command, "orders", "a").exit_code == 1
    assert run(*command, "orders").exit_code == 2
    assert run(*command, "orders", "--all", "--delay", "1h").output == "revived\t2\n"
    assert run(*command, "orders", "--all").exit_code == 1
    sizes = orders.counts().sizes
    assert (sizes.ready, sizes.delayed, sizes.dead) == (1, 2, 0)


def test_dead_purge(run: Bide, orders: bide.Queue) -> None:
    bury(orders, "a", "b")
    assert run("dead", "purge", "orders").exit_code == 2
    assert run("dead", "purge", "orders", "--before", "1000000000", "-y").output == "purged\t0\n"
    assert run("dead", "purge", "orders", "--all", "--yes").output == "purged\t2\n"


def test_leases_of_a_server_settle_with_their_whole_token_alone(run: Bide, url: str) -> None:
    lane = open_lane(url)
    text = Tokens(lane).create("shop", ["put", "consume"])[0]
    with running(ServerApp(Settings(store=url))) as port:
        _settle_over_http(run, f"http://:{text}@127.0.0.1:{port}")
    close_lane(lane)


def _settle_over_http(run: Bide, url: str) -> None:
    with bide.Queue("orders", url) as queue:
        for id in ("a", "b", "c", "d"):
            queue.put(1, id=id)
        first, second = queue.claim(2)
        assert isinstance(first.token, int)
        first.ack()
        queue.ack([second])
    line = run("claim", "orders", "--url", url).stdout
    id, token, _ = line.split("\t")
    assert run("ack", "orders", id, token.partition(".")[0], "--url", url).exit_code != 0
    assert run("ack", "orders", id, token, "--url", url).exit_code == 0
    told = run("claim", "orders", "--json", "--url", url).stdout
    assert "secret" not in json.loads(told)
    assert run("extend", "orders", "-", "--url", url, stdin=told).exit_code == 0
    assert run("ack", "orders", "-", "--url", url, stdin=told).exit_code == 0


def test_what_shows_no_body_shows_no_version(run: Bide, orders: bide.Queue, url: str) -> None:
    orders.put(1, id="a")
    lane = open_lane(url)
    rights = (["read", "bodies"], ["read"])
    tokens = [Tokens(lane).create(None, list(names))[0] for names in rights]
    with running(ServerApp(Settings(store=url))) as port:
        for command in ("get orders a --json", "scan orders --json"):
            results = [
                run(*command.split(), "--url", f"http://:{token}@127.0.0.1:{port}")
                for token in tokens
            ]
            assert [result.stderr for result in results] == ["", ""]
            whole, withheld = (json.loads(result.stdout).keys() for result in results)
            assert whole - withheld == {"body", "version"}
    close_lane(lane)
