"""`python -m benchmarks.timing [WORD]`: the figures, one a line."""

import sys

from benchmarks.timing import run

for figure in run(*sys.argv[1:2]):
    met = {None: "", True: "reached", False: "MISSED"}[figure.met]
    print(f"{figure.name:50} {figure.value:12,.1f} {figure.unit:4} {figure.goal:12} {met}")
