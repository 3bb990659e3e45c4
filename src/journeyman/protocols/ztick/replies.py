"""Answers of the ztick protocol -> bytes.

    <request_id> OK                                      ok
    <request_id> OK <status> <execution_ns>              job_state           GET
    <request_id> <job_id> <status> <execution_ns>        job_line            QUERY, then ok
    <request_id> <rule_id> <pattern> <runner> <args...>  rules.rule_line     LISTRULES, then ok
    <request_id> <metric> <value>                        metric_lines        STAT, then ok
    <request_id> ERROR <code> [<message>]                error and the ones named by their cause
    OK | ERROR auth_required | ERROR auth_failed         AUTH_OK, AUTH_REQUIRED, AUTH_FAILED

A request id, an identifier or a runner argument is written bare where that is read back the same,
and in quotes otherwise (a space, a quote, a line break, no bytes at all): a line of a list always
splits into the values it was made of. The text of an error is always one line. The replies to AUTH
carry no request id and no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from journeyman.formats.ztick import Status
from journeyman.protocols.ztick.commands import AuthNotNeeded, ErrorCode, ReplyOnly

AUTH_OK = b"OK\n"
AUTH_REQUIRED = b"ERROR auth_required\n"
AUTH_FAILED = b"ERROR auth_failed\n"

# Also those of Unicode: some programs take U+0085 and U+2028 for line breaks.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# CR only because the last one of a line would be taken for a line end.
_MUST_BE_QUOTED = re.compile(rb'[ "\r\n]')

_STATUS_WORDS = tuple(status.word for status in Status)  # by byte


class Metrics(Struct, frozen=True):
    """The figures that STAT reports, in this order."""

    uptime_ns: int
    connections: int
    jobs_total: int
    jobs_planned: int
    jobs_triggered: int
    jobs_executed: int
    jobs_failed: int
    rules_total: int
    executions_pending: int
    executions_inflight: int
    persistence: Literal["logfile", "storage", "memory"]
    compression: Literal["idle", "running", "success", "failure"]
    auth_enabled: bool
    tls_enabled: bool
    framerate: int


_METRIC_NAMES = Metrics.__struct_fields__


OK = b" OK\n"  # after a request id


def ok(request_id: bytes) -> bytes:
    return quote(request_id) + OK


def job_state(request_id: bytes, status: Status, execution_ns: int) -> bytes:
    """The answer to GET."""
    return b"%b OK %b %d\n" % (quote(request_id), _STATUS_WORDS[status].encode(), execution_ns)


def job_lines(request_id: bytes, jobs: Iterable[tuple[str, Status, int]]) -> bytes:
    """A run of lines of the answer to QUERY, for (identifier, status, execution_ns) each."""
    head = quote(request_id)
    words = [word.encode() for word in _STATUS_WORDS]
    return b"".join(
        b"%b %b %b %d\n" % (head, quote(identifier.encode()), words[status], execution_ns)
        for identifier, status, execution_ns in jobs
    )


def metric_lines(request_id: bytes, metrics: Metrics) -> bytes:
    """The lines of the answer to STAT."""
    head = quote(request_id)
    lines = []
    for name in _METRIC_NAMES:
        value = getattr(metrics, name)
        text = str(int(value)) if isinstance(value, bool) else str(value)
        lines.append(b"%b %b %b\n" % (head, name.encode(), text.encode()))
    return b"".join(lines)


def line(request_id: bytes, tokens: Iterable[str]) -> bytes:
    """One line of words, each quoted where that is necessary."""
    return join([request_id, *(word.encode() for word in tokens)]) + b"\n"


# -- errors --------------------------------------------------------------------------------------


def error(request_id: bytes, code: ErrorCode, message: str = "") -> bytes:
    head = b"%b ERROR %b" % (quote(request_id), code.encode())
    return head + (b" " + message.encode() if message else b"") + b"\n"


def reply_only(request: ReplyOnly) -> bytes:
    """The answer to what needs no decision."""
    if isinstance(request, AuthNotNeeded):
        return AUTH_OK
    return error(request.request_id, request.code, request.message)


def job_not_found(request_id: bytes, identifier: str) -> bytes:
    return _not_found(request_id, "job", identifier)


def rule_not_found(request_id: bytes, identifier: str) -> bytes:
    return _not_found(request_id, "rule", identifier)


def timetable_not_found(request_id: bytes, identifier: str) -> bytes:
    return _not_found(request_id, "timetable", identifier)


def reserved(request_id: bytes, identifier: str) -> bytes:
    """The log itself uses identifiers like this one."""
    name = in_a_message(identifier.encode())
    return error(request_id, ErrorCode.INVALID_ARGS, f"job_identifier {name} is reserved")


def _not_found(request_id: bytes, kind: str, identifier: str) -> bytes:
    name = in_a_message(identifier.encode())
    return error(request_id, ErrorCode.NOT_FOUND, f"{kind} {name} does not exist")


def auth_denied(request_id: bytes) -> bytes:
    """The identifier is outside the namespace of the client's token."""
    return error(request_id, ErrorCode.AUTH_DENIED, "insufficient namespace scope")


def internal(request_id: bytes) -> bytes:
    """The server failed; the reason goes to its own log, never to the client."""
    return error(request_id, ErrorCode.INTERNAL)


def quote(token: bytes) -> bytes:
    """The token as it has to be written: bare where that is read back the same, else in quotes."""
    if token.isalnum() or (token and not _MUST_BE_QUOTED.search(token)):
        return token
    return in_quotes(token)


def in_quotes(token: bytes) -> bytes:
    """The token in quotes, whether it needs them or not."""
    return b'"' + token.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def in_a_message(token: bytes) -> str:
    r"""The token as the text of an error shows it: in quotes, on one line whatever it holds.

    Such a text is for people and is not read back, so a line break is ``\n`` and another control
    character ``\x1b``: a client that takes every LF for the end of an answer is not fooled.
    """
    return _CONTROL.sub(_escape, in_quotes(token).decode(errors="backslashreplace"))


def _escape(control: re.Match[str]) -> str:
    code = ord(control[0])
    return _SHORT_ESCAPES.get(control[0], f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def join(tokens: Iterable[bytes]) -> bytes:
    """One line, without its LF, that is read back as these tokens."""
    return b" ".join(map(quote, tokens))
