"""The options of ``write.format("journeyman")``: which server, how fast, and what if it says no.

    door         ztick or workq: which of the server's protocols
    address      HOST:PORT; by default 127.0.0.1 and the port of the door
    token        the secret of a token
    tls          true: speak TLS, trusting what the system trusts; tlsCa: trusting this file
    batchSize    jobs on the way at a time, for each task (500)
    rateLimit    jobs a second over all tasks together; then ``tasks`` is needed
    tasks        how many tasks there are at most; each gets its share of the rate
    maxRetries   how often a task connects anew before it gives up (5)
    refused      fail (default): the write fails, behind all jobs that were taken; skip: it does not
    report       a file on the driver's machine for the counts, as JSON
    runId        workq: what ids are made of besides ``job_key``; say the same again to repeat a
                 write that failed, and no job is added twice

A name that nobody knows is an error.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from journeyman.client import workq, ztick
from journeyman.errors import UsageError

DOORS: Final = {"ztick": ztick.DEFAULT_PORT, "workq": workq.DEFAULT_PORT}
_ON_REFUSAL: Final = ("fail", "skip")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Checked and with defaults. Pickled with every task; ``run_id`` is the same in all."""

    door: str
    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    batch_size: int = 500
    rate_limit: float | None = None
    tasks: int | None = None
    max_retries: int = 5
    refused: str = "fail"
    report: str | None = None
    run_id: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ServerOptions:
        """Raises UsageError."""
        values: dict[str, Any] = {}
        address: str | None = None
        for name, text in given.items():
            low = name.lower()
            if low == "address":
                address = text
            elif low in _PARSERS:
                field_name, parse = _PARSERS[low]
                values[field_name] = parse(name, text)
            else:
                raise UsageError(_unknown(name))
        door = values.pop("door", None)
        if door is None:
            raise UsageError("format('journeyman') needs the option door: ztick or workq")
        host, port = parse_address(address, DOORS[door])
        values.setdefault("run_id", str(uuid4()))
        options = cls(door, host, port, **values)
        if options.rate_limit is not None and options.tasks is None:
            raise UsageError(
                "rateLimit is over all tasks: say with tasks how many there are at most,"
                " or use journeyman.spark.sinks.send"
            )
        return options

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str | None, default_port: int) -> tuple[str, int]:
    """HOST, HOST:PORT or [ADDRESS]:PORT."""
    if text is None:
        return "127.0.0.1", default_port
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"an address is HOST:PORT, not {text!r}")
    return host, int(port)


def _word(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.lower() not in words:
            raise UsageError(f"{name} is {' or '.join(words)}, not {text!r}")
        return text.lower()

    return parse


def _number(low: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise UsageError(f"{name} is a number from {low} on, not {text!r}")
        return int(text)

    return parse


def _rate(name: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise UsageError(f"{name} is a number of jobs a second above 0, not {text!r}")
    return rate


def _flag(name: str, text: str) -> bool:
    return _word("true", "false")(name, text) == "true"


def _text(_: str, text: str) -> str:
    return text


_PARSERS: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "door": ("door", _word(*DOORS)),
    "token": ("token", _text),
    "tls": ("tls", _flag),
    "tlsca": ("tls_ca", _text),
    "batchsize": ("batch_size", _number(1)),
    "ratelimit": ("rate_limit", _rate),
    "tasks": ("tasks", _number(1)),
    "maxretries": ("max_retries", _number(0)),
    "refused": ("refused", _word(*_ON_REFUSAL)),
    "report": ("report", _text),
    "runid": ("run_id", _text),
}
_SPELLING: Final = (
    "door",
    "address",
    "token",
    "tls",
    "tlsCa",
    "batchSize",
    "rateLimit",
    "tasks",
    "maxRetries",
    "refused",
    "report",
    "runId",
)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in _SPELLING], 1)
    meant = next((each for each in _SPELLING if near and each.lower() == near[0]), None)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_SPELLING)}"
    return f"format('journeyman') has no option {name!r}: {hint}"
