"""Tokens at a shell: what cannot be, and what helps."""

import pytest

import bide
from bide.server.access import Tokens
from bide.server.app import App
from bide.server.settings import Settings
from tests.cli.conftest import Bide
from tests.server.conftest import running


def test_a_namespace_that_cannot_be_is_named_as_it_was_given(run: Bide) -> None:
    for name in ("my shop", "a/b", "", "-x"):
        refused = run("token", "create", f"--namespace={name}", "--scope", "read")
        assert refused.exit_code == 2
        assert f"namespace={name!r} cannot be the name of a namespace" in refused.stderr
        assert "/q" not in refused.stderr


def test_several_scopes_in_one_are_told_apart(run: Bide) -> None:
    refused = run("token", "create", "--scope", "produce, read")
    assert refused.exit_code == 2
    assert "write --scope produce --scope read" in refused.stderr
    assert "is not one of" in run("token", "create", "--scope", "produce,write").stderr


def test_a_token_that_is_over_at_once_is_not_made(run: Bide) -> None:
    refused = run("token", "create", "--scope", "read", "--expires", "0")
    assert (refused.stdout, refused.exit_code) == ("", 2)
    assert "'--expires': must be longer than 0; without --expires" in refused.stderr


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
    token = Tokens(orders._lane).create(None, ["produce"])[0]
    with running(App(Settings(store=url))) as port:
        for queue in ("orders", "ordrs"):
            done = run("cancel", queue, "b", "--url", f"http://:{token}@127.0.0.1:{port}")
            assert (done.stdout.split("\t")[:3], done.exit_code) == (["b", "no", "gone"], 1)
            assert done.stderr == ""
