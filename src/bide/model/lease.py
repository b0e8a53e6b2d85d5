"""A worker's hold on a message."""

import msgspec


class Lease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One worker's hold on one message.

    `token` is the fencing token: the number of the claim, which only grows within a queue and is
    never used twice. A handler that writes to another system can pass it on, so that the system
    refuses late writers (Kleppmann, "How to do distributed locking", 2016).
    """

    id: str
    token: int
    secret: str | None = None
    """The secret part of a server's token: the number could be guessed. Engines ignore it."""

    @property
    def text(self) -> str:
        """The token as text: the number, and the secret if there is one.

        Example:
            >>> Lease("order-42", 7).text, Lease("order-42", 7, "Wk3v").text
            ('7', '7.Wk3v')
        """
        return str(self.token) if self.secret is None else f"{self.token}.{self.secret}"

    @classmethod
    def of(cls, id: str, text: str) -> "Lease":
        """Return the lease of a token that was given as text.

        Raises:
            ValueError: the text is no token.
        """
        number, dot, secret = text.partition(".")
        if not (number.isascii() and number.isdecimal() and len(number) <= 16):
            raise ValueError(text)
        if dot and not (secret.isascii() and secret.isprintable() and 0 < len(secret) <= 64):
            raise ValueError(text)
        return cls(id, int(number), secret if dot else None)
