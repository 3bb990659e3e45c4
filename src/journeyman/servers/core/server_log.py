"""The messages of the server: lines on stderr, and its state for the service manager.

    2026-03-30T14:00:00.123Z INFO stopped
    {"time":"2026-03-30T14:00:00.123Z","level":"info","message":"stopped"}

    caller --format--> a bounded queue --one thread--> stderr

The thread is there because stderr may be a pipe that is not read: then the queue fills and
lines are dropped and counted, and the server goes on. A line never holds a line break of its own,
and the password of a URL is struck out wherever it turns up.

    systemd --NOTIFY_SOCKET, WATCHDOG_USEC--> journeyman serve
            <--READY=1                        every port is open
            <--WATCHDOG=1                     the event loop turns; twice per interval (writes.py)
            <--RELOADING=1, READY=1           SIGHUP
            <--STOPPING=1

The protocol is that of sd_notify(3): one datagram per message to a Unix socket. Without
NOTIFY_SOCKET, as in a terminal or a container, nothing is sent. Programs that jobs run must not
speak for the server, so both variables are taken out of the environment. A message that cannot be
sent is dropped: the server does not depend on its manager.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from journeyman.clock import Clock
from journeyman.config import LogLevel, MessageFormat
from journeyman.logs.recovery import FileReport, RecoveryReport
from journeyman.logs.sealing import UNANNOUNCED, is_in_flight
from journeyman.runners.contract import redact
from journeyman.units import NS_PER_S, NS_PER_US, US_PER_S

MAX_WAITING_LINES = 10_000
_CLOSE_TIMEOUT_S = 2.0

_RANK = {
    LogLevel.OFF: 0,
    LogLevel.ERROR: 1,
    LogLevel.WARN: 2,
    LogLevel.INFO: 3,
    LogLevel.DEBUG: 4,
    LogLevel.TRACE: 4,
}

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class ServerLog:
    """Formats lines and hands them to ``write``; ``debugging``: whether debug lines are written."""

    def __init__(
        self,
        clock: Clock,
        write: Callable[[str], object],
        *,
        level: LogLevel = LogLevel.INFO,
        format_: MessageFormat = MessageFormat.TEXT,
    ) -> None:
        self._clock = clock
        self._write = write
        self.level = level
        self._json = format_ is MessageFormat.JSON

    @property
    def level(self) -> LogLevel:
        return self._level

    @level.setter
    def level(self, level: LogLevel) -> None:
        self._level = level
        self._rank = _RANK[level]

    @property
    def debugging(self) -> bool:
        return self._rank >= _RANK[LogLevel.DEBUG]

    def error(self, message: str, **fields: object) -> None:
        self._say(LogLevel.ERROR, message, fields)

    def warn(self, message: str, **fields: object) -> None:
        self._say(LogLevel.WARN, message, fields)

    def info(self, message: str, **fields: object) -> None:
        self._say(LogLevel.INFO, message, fields)

    def debug(self, message: str, **fields: object) -> None:
        self._say(LogLevel.DEBUG, message, fields)

    def _say(self, level: LogLevel, message: str, fields: dict[str, object]) -> None:
        if _RANK[level] > self._rank:
            return
        now_ns = self._clock.now_ns()
        moment = datetime.fromtimestamp(now_ns // NS_PER_S, UTC)
        time = f"{moment:%Y-%m-%dT%H:%M:%S}.{now_ns % NS_PER_S // 1_000_000:03d}Z"
        if self._json:
            row: dict[str, object] = {"time": time, "level": str(level), "message": redact(message)}
            row |= {name: _json_value(value) for name, value in fields.items()}
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        else:
            details = "".join(f" {name}={_text_value(value)}" for name, value in fields.items())
            line = f"{time} {level.upper()} {_one_line(redact(message))}{details}"
        # Text of a client may hold anything; a line that cannot be encoded is useless.
        self._write(line.encode(errors="backslashreplace").decode() + "\n")


class LineThread:
    """Writes lines from a thread of its own, and drops them when it cannot keep up."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write_out = write
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_WAITING_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="journeyman-messages", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, as far as that is possible within a moment."""
        try:
            self._lines.put(None, timeout=_CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line += f"({dropped} lines were dropped: they were not read in time)\n"
            try:
                self._write_out(line)
            except (OSError, ValueError):
                # There is no place left to report this. The server itself is fine.
                self._dropped += 1


def _json_value(value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    return redact(str(value))


def _text_value(value: object) -> str:
    text = _one_line(redact(str(value)))
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"=]', text) or not text else text


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def tell_recovery(
    messages: ServerLog, report: RecoveryReport, *, path: str = "", queue: str | None = None
) -> None:
    """Report what recovery found; nothing if all files were whole. ``path``, ``queue``: the log as
    commands name it."""
    for file in report.files:
        if file.sealed_again:
            messages.warn(
                "another program has written to the log since this server was killed; its records "
                "were kept",
                file=file.file,
                records=file.sealed_again,
            )
        unsealed = [damage for damage in file.damages if is_in_flight(damage)]
        if file.damage_count > len(unsealed):
            messages.warn(
                "the log was damaged; all intact records were read",
                file=file.file,
                places=file.damage_count - len(unsealed),
                records=file.records,
                read_behind_damage=file.saved_after_damage,
                lost_at_least=file.lost_at_least,
                put_aside=", ".join(file.quarantined) or "nothing",
            )
        for damage in file.damages:
            if is_in_flight(damage):
                _tell_unsealed(messages, file, damage.offset, damage.length, path, queue)
                continue
            report_damage = messages.error if damage.kind == UNANNOUNCED else messages.warn
            report_damage(
                f"{damage.kind} bytes: {damage.reason}",
                file=file.file,
                offset=damage.offset,
                length=damage.length,
            )


def _tell_unsealed(
    messages: ServerLog, file: FileReport, offset: int, length: int, path: str, queue: str | None
) -> None:
    """Say where a batch is that a crash has cut short, and how to take its records back."""
    aside = file.quarantined[-1] if file.quarantined else "nowhere"
    of_queue = f" --queue {queue}" if queue is not None else ""
    messages.warn(
        "the last batch is not whole and was set aside; to take its whole records back, stop the "
        f"server and run: journeyman repair {path}{of_queue} --take-back {aside}",
        file=file.file,
        offset=offset,
        length=length,
    )


def address_of(peer: Any) -> str:
    """Return what ``getpeername`` gave, as people write it."""
    if not isinstance(peer, tuple):
        return str(peer)
    host, port = peer[0], peer[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ServiceManager:
    """``address``: of the manager's socket, or None. ``watchdog_us``: 0 if no sign is expected."""

    def __init__(self, address: str | None = None, watchdog_us: int = 0) -> None:
        self._address = address
        self._watchdog_us = watchdog_us

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> ServiceManager:
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

    @property
    def watchdog_s(self) -> float:
        """The time within which a sign of life is expected; 0: none is."""
        return self._watchdog_us / US_PER_S

    def sign_of_life(self) -> None:
        if self._watchdog_us:
            self._say("WATCHDOG=1")

    async def show_life(self, is_alive: Callable[[], bool] = lambda: True) -> None:
        """Send signs of life until cancelled. This is a task of the event loop, so that a loop that
        hangs sends nothing."""
        while self._watchdog_us:
            if is_alive():
                self.sign_of_life()
            await asyncio.sleep(self.watchdog_s / 2)

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
