"""A worker or server uses as many file descriptors as the system allows."""

import subprocess
import sys


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource; from bide.worker.process.supervisor import raise_descriptor_limit; "
        "raise_descriptor_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = ["prlimit", "--nofile=100:300", sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True).strip() == "(300, 300)"
