"""`bide import --from`: the pending messages of other libraries."""

import json
from collections.abc import Callable

import pytest
import rq

import bide
from tests.cli.conftest import Bide
from tests.contrib.celery.conftest import Broker


@pytest.fixture
def broker(redis_url: Callable[[], str]) -> Broker:
    broker = Broker(redis_url())
    queue = rq.Queue("mails", connection=broker.client, serializer="json")
    for order in range(2):
        queue.enqueue("shop.tell", order, job_id=f"tell-{order}")
    rq.Queue("mails", connection=broker.client).enqueue("shop.tell", 3)
    broker.client.close()
    return broker


def test_messages_move_and_the_exit_code_tells_of_those_that_stay(
    run: Bide, broker: Broker, orders: bide.Queue
) -> None:
    command = ("import", "orders", broker.store_url, "--from", "rq", "--source-queue", "mails")
    dry = run(*command, "--dry-run")
    assert dry.exit_code == 1
    assert "would-store\t2\n" in dry.stdout
    assert orders.counts().sizes.total == 0

    done = run(*command)
    assert done.exit_code == 1
    assert done.stdout == (
        "stored\t2\nfinished\t0\nwaiting\t0\nexpired\t0\npickled\t1\nrefused\t0\nheld\t0\n"
    )
    assert "1 pickled message left; to move them, too: --allow-pickle" in done.stderr
    assert [one.id for one in orders.claim(9)] == ["tell-0", "tell-1"]

    rest = run(*command, "--allow-pickle", "--json")
    assert rest.exit_code == 0
    facts = json.loads(rest.stdout)
    assert (facts["stored"], facts["pickled"], facts["reasons"]) == (1, 0, {})

    last = run(*command)
    assert last.exit_code == 0
    assert "expired" not in last.stderr
    assert "nothing is pending in the queue 'mails' of rq; --source-queue names" in last.stderr


def test_expired_messages_are_told_and_leave_nothing_to_do(run: Bide, broker: Broker) -> None:
    for order in range(2):
        broker.client.expireat(f"rq:job:tell-{order}", 1)
    command = ("import", "orders", broker.store_url, "--from", "rq", "--source-queue", "mails")
    done = run(*command, "--allow-pickle")
    assert done.exit_code == 0
    assert "stored\t1\n" in done.stdout
    assert "expired\t2\n" in done.stdout
    assert "2 messages expired in rq and left; its workers would not run them" in done.stderr
    assert "nothing is pending" not in run(*command).stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("import", "q", "--from", "rq"), "--from needs the URL of its Redis in place of FILE"),
        (
            ("import", "q", "redis://x", "--from", "rq", "--redis-zset", "k"),
            "--from and --redis-zset cannot be used together",
        ),
        (("import", "q", "redis://x", "--from", "rq", "--remove"), "--remove needs --redis-zset"),
        (("import", "q", "redis://x", "--allow-pickle"), "--allow-pickle needs --from"),
        (("import", "q", "--dry-run"), "--dry-run needs --from or --redis-zset"),
        (("import", "q", "redis://x", "--from", "sidekiq"), "'sidekiq' is not one of"),
        (
            ("import", "q", "redis://x", "--from", "bullmq"),
            "bullmq has no default queue; name it with --source-queue",
        ),
    ],
)
def test_wrong_usage(run: Bide, arguments: tuple[str, ...], hint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split())
