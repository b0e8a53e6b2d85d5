"""Commands in the user's own transaction: `within=connection`.

One adapter a library. They are told apart by the type of the connection, and import no library
that the user does not have.
"""

from bide.within.adapters import acarry_out, carry_out
from bide.within.libraries import dialect_of

__all__ = ["acarry_out", "carry_out", "dialect_of"]
