"""When the fake clocks of the tests begin."""

__all__ = ["START"]

START = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
