"""One ztick connection: AUTH first where tokens are asked for, commands to the writer, answers.

The flow of bytes, commands and answers, and its bounds, are in connection.py. The session decides
nothing about jobs. What a client may do is checked by the writer, with the token that AUTH brought.

Short answers are bytes. Lists may be as long as the schedule, so they are iterators of bytes, to
be sent slice by slice; each slice is made when it is asked for, from a listing that shows the
moment of the command. The OK after a list goes with its last slice, in one write: clients that
take a single read for the whole answer get all of a short list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from journeyman.config import ALL_NAMESPACES
from journeyman.engines.ztick import messages
from journeyman.engines.ztick.job_table import JobListing
from journeyman.protocols.ztick import commands, replies
from journeyman.protocols.ztick.grammar import NOTHING, rule_line, runners_of, words_of
from journeyman.protocols.ztick.parser import ZtickParser, feed_sets
from journeyman.protocols.ztick.replies import line, timetable_not_found
from journeyman.servers.core.connection import Answer, Connection, PortContext
from journeyman.timetables.run_options import NO_OPTIONS, RunOptions

if TYPE_CHECKING:
    from journeyman.servers.ztick.writer import Request

_DECIDED_ALONE = {
    commands.Query,
    commands.ListRules,
    commands.ListTimetables,
    *(
        commands.SetTimetable,
        commands.NextOfTimetable,
        commands.BackfillTimetable,
        commands.RunTimetable,
    ),  # up to some ms each
}
RULES_A_SLICE = 100


@dataclass(slots=True)
class ZtickContext(PortContext):
    """The context that all sessions of the schedule share; ``metrics`` adds figures to STAT's."""

    metrics: Callable[[messages.ZtickStats], replies.Metrics] = field(kw_only=True)


class ZtickSession(Connection):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = ("_parser",)

    _context: ZtickContext

    welcome = replies.AUTH_OK
    secret_is_wrong = replies.AUTH_FAILED
    secret_is_missing = replies.AUTH_REQUIRED
    try_again = b""  # the protocol has six codes of errors, and none says this
    last_event = commands.TooLong
    why_last = "a line is too long"

    def __init__(self, context: ZtickContext) -> None:
        super().__init__(context)
        self._parser = ZtickParser(auth_required=context.access.tokens is not None)

    def _parse(self, data: bytes) -> list[commands.Event]:
        return feed_sets(self._parser, data)

    def _must_be_alone(self, event: Any) -> bool:
        return type(event) in _DECIDED_ALONE

    # -- from the writer --

    @property
    def namespace(self) -> str:
        return self.token.namespace if self.token is not None else ALL_NAMESPACES

    def denies(
        self, command: commands.SetRule | commands.SetTimetable
    ) -> commands.RefusedCommand | None:
        """The token may not have such a rule, or a timetable with such a runner."""
        if self.token is None:
            return None
        reason = next(filter(None, map(self.token.refuses, runners_of(command))), "")
        return (
            commands.RefusedCommand(command.request_id, commands.ErrorCode.AUTH_DENIED, reason)
            if reason
            else None
        )

    def render(self, request: Request, reply: messages.Reply | None) -> Answer:
        if type(request) is commands.SetMany:
            rows = request.rows
            if len(rows) == 1:
                return rows[0][0] + replies.OK
            return b"".join([row[0] + replies.OK for row in rows])
        if reply is messages.DONE:  # nearly always, so it is asked first
            return replies.ok(request.request_id)
        if isinstance(request, commands.REPLY_ONLY):
            return replies.reply_only(request)
        return answer(request, reply, self._context.metrics)

    def render_failure(self, request: Request) -> Answer:
        if type(request) is commands.SetMany:
            return b"".join([replies.internal(row[0]) for row in request.rows])
        return replies.internal(request.request_id)


def answer(
    command: commands.Command,
    reply: messages.Reply | None,
    metrics: Callable[[messages.ZtickStats], replies.Metrics],
) -> Answer:
    """``metrics`` adds to the engine's figures those of the server."""
    request_id = command.request_id
    if isinstance(reply, messages.Accepted):
        return replies.ok(request_id)
    if isinstance(reply, messages.ScheduledJobState):
        return replies.job_state(request_id, reply.status, reply.execution_ns)
    if isinstance(reply, messages.JobNotFound):
        return replies.job_not_found(request_id, reply.identifier)
    if isinstance(reply, messages.Reserved):
        return replies.reserved(request_id, reply.identifier)
    if isinstance(reply, messages.RuleNotFound):
        return replies.rule_not_found(request_id, reply.identifier)
    if isinstance(reply, messages.OutOfScope):
        return replies.auth_denied(request_id)
    if isinstance(reply, JobListing):
        return _jobs(request_id, reply)
    if isinstance(reply, messages.RuleListing):
        return _rules(request_id, reply)
    if isinstance(reply, messages.ZtickStats):
        return replies.metric_lines(request_id, metrics(reply)) + replies.ok(request_id)
    return _of_timetable(request_id, reply)


def _of_timetable(request_id: bytes, reply: messages.Reply | None) -> Answer:
    if isinstance(reply, messages.TimetableNotFound):
        return timetable_not_found(request_id, reply.identifier)
    if isinstance(reply, messages.TimetableRefused):
        return replies.error(request_id, commands.ErrorCode.INVALID_ARGS, reply.reason)
    if isinstance(reply, messages.TimetableRun):
        return line(request_id, ["OK", reply.identifier])
    if isinstance(reply, messages.TimetableView):
        return line(request_id, ["OK", *_timetable_words(reply)])
    if isinstance(reply, messages.TimetableListing):
        slices = (
            b"".join(line(request_id, [each.identifier, *_timetable_words(each)]) for each in some)
            for some in reply.slices
        )
        return _with_ok(request_id, slices)
    if isinstance(reply, messages.NextFirings):
        rows = ([each.local, each.utc, each.warning] for each in reply.firings)
        return b"".join(line(request_id, row) for row in rows) + replies.ok(request_id)
    if isinstance(reply, messages.Backfilled):
        return b"".join(line(request_id, _backfill_words(row)) for row in reply.rows) + replies.ok(
            request_id
        )
    raise AssertionError(f"not a reply for clients: {reply!r}")


def _timetable_words(view: messages.TimetableView) -> list[str]:
    next_ns = NOTHING if view.next_ns is None else str(view.next_ns)
    times = [next_ns, view.next or NOTHING, view.last or NOTHING]
    return [view.state, *times, str(view.running), str(view.waiting), *words_of(view.fields)]


def _backfill_words(row: messages.BackfillItem) -> list[str]:
    status = NOTHING if row.status is None else row.status.word
    return [row.identifier, str(row.execution_ns), status, "run" if row.is_run else "keep"]


def _jobs(request_id: bytes, listing: JobListing) -> Iterator[bytes]:
    return _with_ok(request_id, (replies.job_lines(request_id, rows) for rows in listing))


def _rules(request_id: bytes, listing: messages.RuleListing) -> Iterator[bytes]:
    rules = iter(listing.rules)

    def options_of(identifier: str) -> RunOptions:
        return listing.options.get(identifier, NO_OPTIONS)

    slices = iter(lambda: list(islice(rules, RULES_A_SLICE)), [])
    return _with_ok(
        request_id,
        (
            b"".join(
                rule_line(request_id, r.identifier, r.pattern, r.runner, options_of(r.identifier))
                for r in some
            )
            for some in slices
        ),
    )


def _with_ok(request_id: bytes, slices: Iterator[bytes]) -> Iterator[bytes]:
    """The slices, the last one with the final OK: a short list is a single write."""
    held_back = b""
    for each in slices:
        yield held_back
        held_back = each
    yield held_back + replies.ok(request_id)
