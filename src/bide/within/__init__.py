"""Commands in the user's own transaction: `within=connection`.

One adapter per library. The type of the connection selects it; no adapter imports a library that
the user does not have.
"""

from bide.within.adapters import acarry_out, carry_out
from bide.within.libraries import dialect_of

__all__ = ["acarry_out", "carry_out", "dialect_of"]
