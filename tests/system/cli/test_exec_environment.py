"""What a command of `bide claim --exec` finds in its environment, and how it is cancelled."""

import os
import subprocess
import sys
from pathlib import Path

import bide
from tests.waiting import until


def test_the_lease_has_a_token_of_its_own_name(tmp_path: Path) -> None:
    environment = {**os.environ, "BIDE_URL": f"sqlite:///{tmp_path}/bide.db", "BIDE_TOKEN": "api"}

    def bide(*arguments: str) -> str:
        command = [sys.executable, "-m", "bide", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    bide("put", "orders", "1")
    bide("claim", "orders", "--exec", 'echo "$BIDE_TOKEN $BIDE_LEASE_TOKEN" >told')
    api, lease = (tmp_path / "told").read_text().split()
    assert api == "api"
    assert int(lease) > 0


def test_a_cancel_ends_the_command_at_once(tmp_path: Path) -> None:
    """No claim waits here, and the lease is so long that a hint alone can be the reason."""
    url = f"sqlite:///{tmp_path}/bide.db"
    command = [sys.executable, "-m", "bide", "claim", "orders", "--url", url]
    with bide.Queue("orders", url) as orders:
        orders.put(1, id="a")
        worker = subprocess.Popen([*command, "--lease", "1h", "--exec", "sleep 1000 & wait"])
        until(lambda: (message := orders.get("a")) is not None and message.state == "leased")
        assert orders.cancel("a", running=True, wait="1m")
        assert worker.wait(60) == 1
