"""Addresses of a Spark master or a Spark Connect server, looked at before Java is started.

    --master nonsense               not an address that Spark knows
    --master spark://HOST:PORT      somebody has to listen there
    --remote sc://HOST:PORT         likewise

Spark itself tries again for minutes, and blames Java or says nothing. A second in front of it tells
whether anybody answers.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from journeyman.errors import JourneymanError, UsageError

PATIENCE_SECONDS: Final = 5.0
_CONNECT_PORT: Final = 15002
_MASTER_PORT: Final = 7077
_NUMBER: Final = r"(?:\d+|\*)"
_MASTERS: Final = re.compile(
    rf"local|local\[{_NUMBER}(?:,\d+)?\]|local-cluster\[\d+,\s*\d+,\s*\d+\]"
    r"|spark://\S+|yarn|k8s://\S+"
)


def check_address(master: str | None, remote: str | None) -> None:
    """Raises UsageError for what is no address, JourneymanError where nobody answers."""
    if remote is not None and not remote.startswith("local"):
        _check_remote(remote)
    elif master is not None and remote is None:
        _check_master(master)


def _check_remote(remote: str) -> None:
    if not remote.startswith("sc://"):
        raise UsageError(f"not a Spark Connect server: {remote!r} (expected sc://HOST:PORT)")
    where = re.split("[/;]", remote.removeprefix("sc://"), maxsplit=1)[0]
    _check_answer(f"no Spark Connect server at sc://{where}", where, _CONNECT_PORT)


def _check_master(master: str) -> None:
    if _MASTERS.fullmatch(master) is None:
        raise UsageError(
            f"not a Spark master: {master!r} (expected local[*], spark://HOST:PORT, yarn or k8s://URL)"
        )
    if master.startswith("spark://"):
        _check_answer(f"no Spark master at {master}", master.removeprefix("spark://"), _MASTER_PORT)


def _check_answer(what: str, where: str, default_port: int) -> None:
    """One of the addresses has to take a connection."""
    reasons = []
    for host, port in _hosts(where, default_port):
        try:
            with closing(socket.create_connection((host, port), PATIENCE_SECONDS)):
                return
        except OSError as error:
            reasons.append(error.strerror or str(error))
    raise JourneymanError(
        f"{what}: {reasons[-1].lower()}; start it, or check the address and the firewall"
    )


def _hosts(where: str, default_port: int) -> Iterator[tuple[str, int]]:
    for each in where.split(","):
        host, colon, port = each.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = each, str(default_port)
        if not host or not port.isdecimal() or int(port) > 0xFFFF:
            raise UsageError(f"not an address: {each!r} (expected HOST:PORT)")
        yield host.strip("[]"), int(port)
