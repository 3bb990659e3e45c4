"""A mail server on loopback that keeps what it is sent, or refuses it."""

from __future__ import annotations

import email
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller

from tests.support.ports import free_port

WAIT_LIMIT_S = 180.0


class Mailbox:
    """The mails so far; ``refuse`` is an answer to be given instead of taking one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.refuse = ""
        self._arrived = threading.Condition()
        self._mails: list[Message] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's names
        if self.refuse:
            return self.refuse
        with self._arrived:
            self._mails.append(email.message_from_bytes(envelope.content))
            self._arrived.notify_all()
        return "250 taken"

    def wait_for(self, count: int) -> list[Message]:
        """The mails, once there are so many."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self._mails) >= count, WAIT_LIMIT_S)
            return list(self._mails)


@contextmanager
def mail_server(port: int = 0) -> Iterator[Mailbox]:
    mailbox = Mailbox(port or free_port())
    controller = Controller(mailbox, hostname="127.0.0.1", port=mailbox.port)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()
