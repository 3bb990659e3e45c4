"""What the server says to the service manager that started it: ready, alive, stopping.

    systemd --NOTIFY_SOCKET, WATCHDOG_USEC--> journeyman serve
            <--READY=1                        every port is open
            <--WATCHDOG=1                     the event loop turns; twice per interval
            <--RELOADING=1, READY=1           SIGHUP
            <--STOPPING=1

The protocol is that of sd_notify(3): one datagram per message to a Unix socket. Without
NOTIFY_SOCKET, as in a terminal or a container, every method does nothing. Programs that jobs run
must not speak for the server, so both variables are taken out of the environment.

A message that cannot be sent is dropped: the server does not depend on its manager.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping

from journeyman.units import NS_PER_US, US_PER_S

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class ServiceManager:
    """``address``: of the manager's socket, or None. ``watchdog_us``: 0 if no sign is expected."""

    def __init__(self, address: str | None = None, watchdog_us: int = 0) -> None:
        self._address = address
        self._watchdog_us = watchdog_us

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """The one that the environment names, which is then forgotten there."""
        address = environment.pop(_SOCKET, None)
        every_us = environment.pop(_WATCHDOG, "")
        meant_for = environment.pop(_WATCHDOG_PID, str(os.getpid()))
        expects_signs = every_us.isdecimal() and meant_for == str(os.getpid())
        return cls(address, int(every_us) if expects_signs else 0)

    def ready(self) -> None:
        self._say("READY=1")

    def reloading(self) -> None:
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // NS_PER_US}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    async def show_life(self) -> None:
        """Until cancelled. A task of the event loop, so that a loop that hangs sends nothing."""
        while self._watchdog_us:
            self._say("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_us / 2 / US_PER_S)

    def _say(self, message: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is in the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), address)
            except OSError:
                return
