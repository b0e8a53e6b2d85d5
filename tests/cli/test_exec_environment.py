"""What a command of `bide claim --exec` finds in its environment."""

import os
import subprocess
import sys
from pathlib import Path


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
