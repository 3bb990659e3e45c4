r"""Bytes on a connection <-> commands and replies, without a socket in sight.

Each dialect is a machine that is fed bytes and gives back commands, and a set of functions that
turn answers into bytes. Nothing here waits, reads a clock or decides what a command does.

    <dialect>/parser.py     a connection: bytes -> events, in order, however the bytes are cut
    <dialect>/commands.py   what a client can ask for, and every limit
    <dialect>/replies.py    answers -> bytes
    ztick/grammar.py        the words of runners and timetables, both ways
    workq/readers.py        the words, flags and payload of a command -> itself, or what is wrong
    proxy.py                what a load balancer says before all else

In this file is what all three can meet before a command: a secret, or a client of another protocol.

    POST / HTTP/1.1\r\n          a request line, of any method and any version
    Host: 127.0.0.1:5678\r\n     a header that browsers, proxies and libraries send
    \x16\x03...                  a TLS handshake, whose session ticket may hold lines of text

A page of any site can make a browser send such requests to a port of this machine, with a body of
the page's choice. A protocol that skips the lines it does not know would then execute the body.
So every parser asks ``foreign`` about lines that are not commands of its own, and ends with the
answer: the connection is closed, and nothing that follows is read.

A client that has one of the other ports of this server by mistake is answered, so that it need not
wait for a reply that never comes: ``is_of_schedule`` and ``is_of_queues`` know its lines. Each port
answers in its own language, by which the client knows the port.

No command of the three protocols looks like this: theirs are not a method in capitals before a
path, and do not end with an HTTP version. In the schedule's protocol, where a client chooses the
first word, a header with its colon and a space is never taken for a request id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Auth:
    """The first command where authentication is on. The secret stays out of ``repr``."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuthRequired:
    """A command came before the secret: say so and close."""


LINE_END = b"\r\n"  # used by the work queue and the fan-out queues
HEAD_BYTES = 256  # enough of an overlong line to recognise its command

_METHODS = rb"(?:GET|POST|PUT|OPTIONS|HEAD|DELETE|PATCH|CONNECT|TRACE|PRI)"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(
    rb"[ \t]*(?:"
    rb"%b[ \t]+(?:[/*]|\S+[ \t]+HTTP/[0-9])"  # a known method, then a path or a version
    rb"|%b[ \t]+(?:[/*]|[A-Za-z][A-Za-z0-9+.-]*://)\S*[ \t]+HTTP/[0-9]"  # scripts invent methods
    rb")" % (_METHODS, _TOKEN)
)
_HEADER = re.compile(
    rb"[ \t]*(?:Host|User-Agent|Origin|Referer|Cookie|Connection|Upgrade|Authorization|Accept|TE"
    rb"|Cache-Control|Pragma|Transfer-Encoding|Expect|Range|DNT|Via|Forwarded|Keep-Alive|Trailer"
    rb"|Upgrade-Insecure-Requests|Last-Event-ID|Ping-From|Ping-To|Priority|Purpose|Service-Worker"
    rb"|(?:Accept|Access-Control|Content|If|Proxy|Sec|X)-[A-Za-z0-9-]+"
    rb")[ \t]*:",
    re.IGNORECASE,
)
TLS_HANDSHAKE = b"\x16\x03"

_UUID = rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_OF_SCHEDULE = re.compile(
    rb"(?:AUTH [^ ]+"
    rb"|[^ ]+ (?:SET|GET|QUERY|LISTRULES|STAT|REMOVE|REMOVERULE|RULE|TIMETABLE)(?: .*)?)\r?"
)
_OF_QUEUES = re.compile(
    rb"(?:(?:add|schedule|run|complete|fail|result|delete|touch) %b(?: .*)?"
    rb"|lease [^ ]+ .*|inspect (?:server|queues?|jobs?)(?: .*)?|limit [^ ]+ .*|auth [^ ]+"
    rb"|set [^ ]+ [0-9]+ [0-9]+ [0-9]+|gets? [^ ]+)\r?" % _UUID
)


class Foreign(NamedTuple):
    """The client speaks another protocol: close at once, and read nothing more."""

    protocol: str


HTTP = Foreign("HTTP")
TLS = Foreign("TLS")


def foreign(line: bytes) -> Foreign | None:
    """The protocol that this line, whole or only begun, gives away; None if it is none of them."""
    if line.startswith(TLS_HANDSHAKE):
        return TLS
    return HTTP if _REQUEST.match(line) or _HEADER.match(line) else None


def is_of_schedule(line: bytes) -> bool:
    """True if a client of the schedule wrote this line, on another port."""
    return _OF_SCHEDULE.fullmatch(line) is not None


def is_of_queues(line: bytes) -> bool:
    """True if a client of the work queue or of the fan-out queues did, on the schedule's port."""
    return _OF_QUEUES.fullmatch(line) is not None
