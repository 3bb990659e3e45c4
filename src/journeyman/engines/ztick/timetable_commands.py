"""The commands of timetables: set, list, pause, resume, remove, run now, backfill.

Each function takes the state, the command and the prefix of the client's namespace, as those of
engine.py do. The fields of a timetable have been read by the protocol; here it gets its place.

    SET       the same fields again: nothing happens, so programs may set theirs at every start
              other times: the planned occurrence is replaced by the first one after now
              else, another runner for example: what is planned and what waits stays
    PAUSE     the planned occurrence is removed; runs under way, held and retried ones go on
    RESUME    plans the first one after now: what was missed in between is not caught up
    REMOVE    removes what is planned, held and to be tried again; runs under way go on
    RUN       one more job now, ``<id>@<now, with milliseconds>``
    BACKFILL  occurrences of the past that have not succeeded, each under its own id; they are due
              at once, and wait for each other unless ``overlap`` is ``allow``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from journeyman.engines.ztick import messages, notices, occurrences, steps, timetables
from journeyman.engines.ztick.browsing import PageTimetables, narrowed
from journeyman.engines.ztick.job_table import (
    PLANNED,
    STATUS_AT,
    execution_ns_of,
    identifier_of,
)
from journeyman.formats.ledger import (
    TimetablePaused,
    TimetableRemoved,
    TimetableResumed,
    TimetableSet,
)
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import Status
from journeyman.formats.ztick.codec import is_reserved
from journeyman.protocols.ztick import commands
from journeyman.timetables.timetable import FIELDS_OF_TIMES
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    from journeyman.engines.ztick.state import ZtickState

MAX_BACKFILL = 500

_NOT_KEPT = "timetables need the ledger: set data.directory or ledger.path"
_UNREADABLE = "the timetable cannot be read here: is its time zone known to this machine?"


def _set_timetable(
    state: ZtickState, command: commands.SetTimetable, prefix: str
) -> messages.Reply:
    name, book = command.identifier, state.timetables
    if not name.startswith(prefix):
        return messages.OUT_OF_SCOPE
    if (reason := refusal(book, name)) is not None:
        return messages.TimetableRefused(reason)
    body = timetables.body_of(command.timetable.fields())
    before = book.get(name)
    if before is not None and before.body == body:
        return messages.DONE
    read = timetables.read_body(body)
    if read is None:
        return messages.TimetableRefused(_UNREADABLE)
    state.ledger.append(TimetableSet(Instant(state.now_ns), name, command.timetable.fields()))
    if before is not None and _is_at_the_same_times(before.fields, command.timetable.fields()):
        book.put(name, before._replace(body=body))
        return messages.DONE
    row = timetables.TimetableRow(None if before is None else before.done, None, False, body)
    following = occurrences.first_after_now(state, row, read)
    if following is None:
        state.ledger.pop()
        return messages.TimetableRefused("it never fires: no occurrence is after now")
    if before is not None:
        occurrences.unplan(state, name, before)
    if before is not None and before.paused:
        book.put(name, row._replace(paused=True))
    else:
        occurrences.plan_next(state, name, row, read, following)
    return messages.DONE


def _is_at_the_same_times(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Then what is planned and what waits stay as they are."""
    return all(before.get(name) == after.get(name) for name in FIELDS_OF_TIMES)


def refusal(book: timetables.TimetableBook, name: str) -> str | None:
    """Why nothing of this name can be kept in the ledger, or None."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # JSON can say what UTF-8 cannot
        size = 0
    if not 0 < size <= timetables.MAX_NAME_BYTES or is_reserved(name):
        most = timetables.MAX_NAME_BYTES
        return f"the identifier is reserved, empty, not Unicode or over {most} bytes"
    if not book.is_kept:
        return _NOT_KEPT
    if book.total >= timetables.MAX_TIMETABLES and not book.has(name):
        return f"there are {timetables.MAX_TIMETABLES} timetables: remove some first"
    return None


def _get_timetable(
    state: ZtickState, command: commands.GetTimetable, prefix: str
) -> messages.Reply:
    row = _find(state, command.identifier, prefix)
    return (
        row
        if not isinstance(row, timetables.TimetableRow)
        else _view_of(state, command.identifier, row)
    )


def _view_of(state: ZtickState, name: str, row: timetables.TimetableRow) -> messages.TimetableView:
    book = state.timetables
    job = None if row.planned is None or row.paused else state.jobs.get(row.planned.job(name))
    is_planned = job is not None and job[STATUS_AT] == PLANNED
    next_ns = execution_ns_of(job) if job is not None and is_planned else None
    return _view(name, row, book.runs(name), book.held_runs(name), next_ns)


def _view(
    name: str, row: timetables.TimetableRow, running: int, waiting: int, next_ns: int | None
) -> messages.TimetableView:
    is_over = row.planned is None and not row.paused
    return messages.TimetableView(
        name,
        "paused" if row.paused else "ended" if is_over else "active",
        row.fields,
        next_ns,
        "" if row.paused or row.planned is None else row.planned.label,
        "" if row.done is None else row.done.label,
        running,
        waiting,
    )


def _list_timetables(
    state: ZtickState, command: commands.ListTimetables, prefix: str
) -> messages.Reply:
    longer = narrowed(command.prefix, prefix)
    if longer is None:
        return messages.TimetableListing(iter(()))
    return messages.TimetableListing(_slices(state.timetables.snapshot(), longer))


def _page_timetables(state: ZtickState, command: PageTimetables, prefix: str) -> messages.Reply:
    longer = narrowed(command.prefix, prefix)
    if longer is None:
        return messages.TimetableListing(iter(()))
    found = []
    for name in state.timetables.page(longer, command.after, command.limit):
        row = state.timetables.get(name)
        assert row is not None
        found.append(_view_of(state, name, row))
    return messages.TimetableListing(iter([found]))


def _slices(
    shards: Iterator[dict[str, timetables.Row]], prefix: str
) -> Iterator[list[messages.TimetableView]]:
    """Planned occurrences show their nominal time: a long list looks up no jobs."""
    for shard in shards:
        rows = [(name, row) for name, row in shard.items() if name.startswith(prefix)]
        if rows:
            yield [_listed(name, timetables.TimetableRow.unpack(row)) for name, row in rows]


def _listed(name: str, row: timetables.TimetableRow) -> messages.TimetableView:
    next_ns = None if row.planned is None or row.paused else row.planned.at_s * NS_PER_S
    return _view(name, row, 0, 0, next_ns)


def _pause_timetable(
    state: ZtickState, command: commands.PauseTimetable, prefix: str
) -> messages.Reply:
    name = command.identifier
    row = _find(state, name, prefix)
    if not isinstance(row, timetables.TimetableRow):
        return row
    if not row.paused:
        state.ledger.append(TimetablePaused(Instant(state.now_ns), name))
        state.timetables.put(name, row._replace(paused=True))
        occurrences.unplan(state, name, row)
    return messages.DONE


def _resume_timetable(
    state: ZtickState, command: commands.ResumeTimetable, prefix: str
) -> messages.Reply:
    name = command.identifier
    row = _find(state, name, prefix)
    if not isinstance(row, timetables.TimetableRow):
        return row
    if row.paused:
        read = timetables.read_body(row.body)
        if read is None:
            return messages.TimetableRefused(_UNREADABLE)
        state.ledger.append(TimetableResumed(Instant(state.now_ns), name))
        row = row._replace(paused=False)
        occurrences.plan_next(state, name, row, read, occurrences.first_after_now(state, row, read))
    return messages.DONE


def _remove_timetable(
    state: ZtickState, command: commands.RemoveTimetable, prefix: str
) -> messages.Reply:
    name, book = command.identifier, state.timetables
    row = _find(state, name, prefix)
    if not isinstance(row, timetables.TimetableRow):
        return row
    now = Instant(state.now_ns)
    state.ledger.append(TimetableRemoved(now, name))  # the next start forgets what was planned
    if row.paused:
        state.ledger.append(TimetableResumed(now, name))
    occurrences.unplan(state, name, row)
    for identifier in book.retried(name):
        steps.end_retries(state, identifier)
        steps.remove_planned(state, identifier)
    while (held := book.release(name)) is not None:
        if state.jobs.holds(held):
            steps.remove_planned(state, identifier_of(held))
    notices.forget(state, name)
    book.put(name, None)
    return messages.DONE


def _run_timetable(
    state: ZtickState, command: commands.RunTimetable, prefix: str
) -> messages.Reply:
    name = command.identifier
    row = _find(state, name, prefix)
    if not isinstance(row, timetables.TimetableRow):
        return row
    read = timetables.read_body(row.body)
    if read is None:
        return messages.TimetableRefused(_UNREADABLE)
    identifier = steps.free_job(state, name, read.occurrences.zone)
    steps.plan(state, identifier, state.now_ns)
    return messages.TimetableRun(identifier)


def _next_of_timetable(
    state: ZtickState, command: commands.NextOfTimetable, prefix: str
) -> messages.Reply:
    row = _find(state, command.identifier, prefix)
    if not isinstance(row, timetables.TimetableRow):
        return row
    read = timetables.read_body(row.body)
    if read is None:
        return messages.TimetableRefused(_UNREADABLE)
    now_s = state.now_ns // NS_PER_S
    after_s = now_s if row.done is None else max(now_s, row.done.at_s)
    return messages.NextFirings(tuple(read.occurrences.firings(after_s, command.count)))


def _backfill_timetable(
    state: ZtickState, command: commands.BackfillTimetable, prefix: str
) -> messages.Reply:
    name = command.identifier
    row = _find(state, name, prefix)
    if not isinstance(row, timetables.TimetableRow):
        return row
    read = timetables.read_body(row.body)
    if read is None:
        return messages.TimetableRefused(_UNREADABLE)
    until_s = min(command.until_s, state.now_ns // NS_PER_S)
    moments = read.occurrences.between(command.from_s, until_s, MAX_BACKFILL + 1)
    if len(moments) > MAX_BACKFILL:
        reason = f"more than {MAX_BACKFILL} occurrences: choose a shorter range"
        return messages.TimetableRefused(reason)
    rows = []
    for at_s in moments:
        identifier = timetables.Occurrence(at_s, read.occurrences.zone.offset_s(at_s)).job(name)
        job = state.jobs.get(identifier)
        status = None if job is None else Status(job[STATUS_AT])
        is_run = status is None or status is Status.FAILED
        rows.append(messages.BackfillItem(identifier, at_s * NS_PER_S, status, is_run))
        if is_run and not command.is_preview:
            steps.plan(state, identifier, at_s * NS_PER_S)
    return messages.Backfilled(tuple(rows))


def _find(state: ZtickState, name: str, prefix: str) -> timetables.TimetableRow | messages.Reply:
    if not name.startswith(prefix):
        return messages.OUT_OF_SCOPE
    row = state.timetables.get(name)
    return messages.TimetableNotFound(name) if row is None else row


DECISIONS: dict[type, Callable[[ZtickState, Any, str], messages.Reply]] = {
    commands.SetTimetable: _set_timetable,
    commands.GetTimetable: _get_timetable,
    commands.ListTimetables: _list_timetables,
    PageTimetables: _page_timetables,
    commands.PauseTimetable: _pause_timetable,
    commands.ResumeTimetable: _resume_timetable,
    commands.RemoveTimetable: _remove_timetable,
    commands.RunTimetable: _run_timetable,
    commands.NextOfTimetable: _next_of_timetable,
    commands.BackfillTimetable: _backfill_timetable,
}
