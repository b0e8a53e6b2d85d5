"""A mail server on this machine that keeps the mails, for the example and its tests."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage, Message

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler


class Mailbox(MessageHandler):
    """Keep the mails."""

    def __init__(self) -> None:
        super().__init__(EmailMessage)
        self.mails: list[Message] = []
        self.address = ""

    def handle_message(self, message: Message) -> None:
        """Keep a mail."""
        self.mails.append(message)

    def subjects(self) -> list[str]:
        """Return recipient and subject of each mail."""
        return [f"{mail['To']}: {mail['Subject']}" for mail in self.mails]


@contextmanager
def mailbox(port: int = 0) -> Iterator[Mailbox]:
    """Run the server during the block.

    Args:
        port: where to listen; a free port by default.
    """
    box = Mailbox()
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    server = Controller(box, hostname="127.0.0.1", port=port)
    server.start()
    box.address = f"127.0.0.1:{port}"
    try:
        yield box
    finally:
        server.stop()
