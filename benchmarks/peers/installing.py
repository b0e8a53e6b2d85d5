"""Each peer in an environment of its own, in a cache that later runs use again."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers.catalogue import Peer

__all__ = ["Uninstallable", "command_of"]

PROGRAMS = Path(__file__).with_name("programs")


class Uninstallable(Exception):
    """A peer could not be installed here."""


def command_of(peer: Peer, cache: Path) -> list[str]:
    """Install a peer unless this is done, and return the command that runs its program."""
    if peer.apt and shutil.which(peer.apt) is None:
        raise Uninstallable(f"{peer.apt} is not on PATH: run `tools/servers peers`")
    folder = cache / peer.name
    mark = folder / "installed"
    wanted = "\n".join((sys.version, *peer.python, *peer.node))
    is_done = mark.exists() and mark.read_text() == wanted
    if peer.node:
        if not is_done:
            _clear(folder)
            _do("npm", "install", "--silent", "--prefix", str(folder), *peer.node)
            mark.write_text(wanted)
        # Node looks for packages beside the program.
        program = shutil.copy(PROGRAMS / f"{peer.name}.mjs", folder)
        return ["node", str(program)]
    python = Path(sys.executable)
    if peer.python:
        python = folder / "bin" / "python"
        if not is_done:
            _clear(folder)
            venv.create(folder, with_pip=True)
            _do(str(python), "-m", "pip", "install", "--quiet", *peer.python)
            mark.write_text(wanted)
    return [str(python), "-m", f"benchmarks.peers.programs.{peer.name}"]


def _clear(folder: Path) -> None:
    """Leave an empty folder; an installation that was interrupted is no base for another."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _do(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Uninstallable(f"{command[0]} is not on PATH") from error
    if done.returncode:
        raise Uninstallable((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
