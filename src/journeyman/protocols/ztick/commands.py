"""The commands of the ztick protocol as values, one type per command.

    <request_id> SET <job_identifier> <timestamp>        Set
    <request_id> GET <job_identifier>                    Get
    <request_id> QUERY [<prefix>]                        Query
    <request_id> REMOVE <job_identifier>                 Remove
    <request_id> RULE SET <rule_identifier> <pattern>    SetRule
                 [<option>=<value>...] <runner> <arguments...>
    <request_id> REMOVERULE <rule_identifier>            RemoveRule
    <request_id> LISTRULES                               ListRules
    <request_id> STAT                                    Stat
    <request_id> TIMETABLE SET <id> <kind> <when> ...    SetTimetable; see grammar.py
    <request_id> TIMETABLE GET | PAUSE | RESUME |        GetTimetable, PauseTimetable, ...
                 REMOVE | RUN <id>
    <request_id> TIMETABLE LIST [<prefix>]               ListTimetables
    <request_id> TIMETABLE NEXT <id> [<count>]           NextOfTimetable
    <request_id> TIMETABLE BACKFILL <id> <from> <until>  BackfillTimetable
    AUTH <secret>                                        Auth

More can come out of a connection: ``RefusedCommand`` (a known command with wrong arguments) and
``AuthNotNeeded`` only have to be answered; ``AuthRequired`` and ``TooLong``: answer, or not, and
close; ``Foreign``: the client speaks HTTP, close at once.

A request id is whatever bytes the client chose, so it stays bytes. Identifiers, patterns and
runner arguments end up in a log that holds UTF-8 only, so they are ``str`` and always encodable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from journeyman.formats.ztick import Runner
from journeyman.protocols import Auth, AuthRequired, Foreign
from journeyman.timetables import Timetable
from journeyman.timetables.run_options import NO_OPTIONS, RunOptions


class ErrorCode(StrEnum):
    """The word after ``ERROR``; clients may act on it, the text after it is for people."""

    NOT_FOUND = "not_found"
    INVALID_ARGS = "invalid_args"
    AUTH_REQUIRED = "auth_required"
    AUTH_FAILED = "auth_failed"
    AUTH_DENIED = "auth_denied"
    INTERNAL = "internal"


class Set(Struct, frozen=True):
    """Create the job, or plan it again whatever its status."""

    request_id: bytes
    identifier: str
    execution_ns: int


class SetMany(NamedTuple):
    """SETs of the usual shape that came together (parser.feed_sets). Each is answered."""

    rows: list[tuple[bytes, bytes, bytes]]  # request id, job identifier, nanoseconds

    @property
    def request_id(self) -> bytes:
        """That of the first."""
        return self.rows[0][0]

    def one_by_one(self) -> list[Set]:
        return [Set(request_id, name.decode(), int(time)) for request_id, name, time in self.rows]


class Get(Struct, frozen=True):
    request_id: bytes
    identifier: str


class Query(Struct, frozen=True):
    """List the jobs whose identifier begins with ``prefix``; an empty one lists all."""

    request_id: bytes
    prefix: str


class ListRules(Struct, frozen=True):
    request_id: bytes


class Stat(Struct, frozen=True):
    request_id: bytes


class Remove(Struct, frozen=True):
    request_id: bytes
    identifier: str


class RemoveRule(Struct, frozen=True):
    request_id: bytes
    identifier: str


class SetRule(Struct, frozen=True):
    """Create or replace the rule."""

    request_id: bytes
    identifier: str
    pattern: str
    runner: Runner
    options: RunOptions = NO_OPTIONS


class SetTimetable(Struct, frozen=True):
    """Create or replace the timetable. ``runner`` is what its words mean, if it has any."""

    request_id: bytes
    identifier: str
    timetable: Timetable
    runner: Runner | None


class GetTimetable(Struct, frozen=True):
    request_id: bytes
    identifier: str


class ListTimetables(Struct, frozen=True):
    request_id: bytes
    prefix: str


class PauseTimetable(Struct, frozen=True):
    request_id: bytes
    identifier: str


class ResumeTimetable(Struct, frozen=True):
    request_id: bytes
    identifier: str


class RemoveTimetable(Struct, frozen=True):
    request_id: bytes
    identifier: str


class RunTimetable(Struct, frozen=True):
    """Run it now, once."""

    request_id: bytes
    identifier: str


class NextOfTimetable(Struct, frozen=True):
    """The next so many occurrences."""

    request_id: bytes
    identifier: str
    count: int


class BackfillTimetable(Struct, frozen=True):
    """Run what has not succeeded of [from, until), or only show it."""

    request_id: bytes
    identifier: str
    from_s: int
    until_s: int
    is_preview: bool


OfTimetable: TypeAlias = (
    SetTimetable
    | GetTimetable
    | ListTimetables
    | PauseTimetable
    | ResumeTimetable
    | RemoveTimetable
    | RunTimetable
    | NextOfTimetable
    | BackfillTimetable
)
Command: TypeAlias = (
    Set | SetMany | Get | Query | ListRules | Stat | Remove | RemoveRule | SetRule | OfTimetable
)


class RefusedCommand(Struct, frozen=True):
    """A known command whose arguments are wrong: nothing to decide, only to answer."""

    request_id: bytes
    code: ErrorCode
    message: str


class AuthNotNeeded(Struct, frozen=True):
    """AUTH where authentication is off: nothing to decide, only to answer ``OK``."""

    request_id: bytes = b""  # AUTH has no request id


class TooLong(Struct, frozen=True):
    """A line goes over the limit: close without an answer."""


ReplyOnly: TypeAlias = RefusedCommand | AuthNotNeeded  # events that need only a reply
REPLY_ONLY = (RefusedCommand, AuthNotNeeded)

Event: TypeAlias = Command | ReplyOnly | Auth | AuthRequired | TooLong | Foreign
