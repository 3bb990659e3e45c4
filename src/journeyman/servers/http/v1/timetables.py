"""Timetables over HTTP, version 1: set, look, pause, resume, run now, next firings, backfill."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from cronsim import CronSim, CronSimError

from journeyman.engines.ztick.browsing import PageTimetables
from journeyman.engines.ztick.messages import (
    Backfilled,
    NextFirings,
    TimetableListing,
    TimetableNotFound,
    TimetableRefused,
    TimetableRun,
    TimetableView,
)
from journeyman.errors import TimetableError
from journeyman.protocols.ztick.commands import (
    BackfillTimetable,
    GetTimetable,
    NextOfTimetable,
    PauseTimetable,
    RemoveTimetable,
    ResumeTimetable,
    RunTimetable,
    SetTimetable,
)
from journeyman.protocols.ztick.grammar import read_timetable
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.fields import cursor_of, read_cursor, read_moment, time_text
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.past import PastRoutes
from journeyman.units import NS_PER_S

_NO_ID = b""
_ANY = datetime(2026, 1, 1)  # noqa: DTZ001 - words depend on no moment, and no zone
_route = partial(Route, tag="timetables")


class TimetableRoutes:
    def __init__(self, backend: HttpBackend, past: PastRoutes) -> None:
        self._backend = backend
        self._past = past

    def routes(self) -> list[Route]:
        all_, one = "/v1/timetables", "/v1/timetables/{timetable}"
        return [
            _route("GET", all_, self.timetables, "Timetables by id", values.Timetables,
                   query=values.NamesAtQuery, errors=(422,)),
            _route("PUT", one, self.set, "Set a timetable", values.TimetableSeen,
                   body=values.TimetableBody, has_secrets=True, errors=(409,)),
            _route("GET", one, self.timetable, "A timetable", values.TimetableSeen, errors=(404,)),
            _route("DELETE", one, self.remove, "Remove a timetable", errors=(404, 409)),
            _route("GET", f"{one}/next", self.next, "The next firings", values.Firings,
                   query=values.CountQuery, errors=(404,)),
            _route("POST", f"{one}/pause", self.pause, "Pause a timetable",
                   errors=(404, 409, 422)),
            _route("POST", f"{one}/resume", self.resume, "Resume a timetable",
                   errors=(404, 409, 422)),
            _route("POST", f"{one}/run", self.run, "Run a timetable now, once",
                   values.RunPlanned, errors=(404, 409, 422)),
            _route("POST", f"{one}/backfill", self.backfill,
                   "Run what has not succeeded of a span, or show it", values.BackfillAnswer,
                   body=values.BackfillBody, errors=(404, 409, 422)),
        ]  # fmt: skip

    async def timetables(self, call: RouteCall) -> values.Timetables:
        query: values.NamesAtQuery = call.query
        if query.at:
            return await self._timetables_then(call, query)
        after = (read_cursor(query.cursor) or b"").decode(errors="replace")
        asked = PageTimetables(query.prefix, after, query.limit + 1)
        listing: TimetableListing = await self._ask(call, asked)
        found = [row for rows in listing.slices for row in rows]
        shown = found[: query.limit]
        last = shown[-1].identifier.encode() if len(found) > len(shown) else None
        return values.Timetables([timetable_seen(row) for row in shown], cursor_of(last))

    async def _timetables_then(
        self, call: RouteCall, query: values.NamesAtQuery
    ) -> values.Timetables:
        rows, has_more = await self._past.timetables(call, query)
        found = []
        for name, fields, is_paused, done, planned in rows:
            state: Any = "paused" if is_paused else "active" if planned else "ended"
            label = "" if is_paused else planned
            view = TimetableView(name, state, fields, None, label, done, 0, 0)
            found.append(timetable_seen(view))
        return values.Timetables(found, cursor_of(rows[-1][0].encode() if has_more else None))

    async def set(self, call: RouteCall) -> values.TimetableSeen:
        name = call.path["timetable"]
        fields = {
            key: value
            for key, value in msgspec.to_builtins(call.body).items()
            if value not in (None, [])
        }
        try:
            timetable, runner = read_timetable(fields)
        except TimetableError as error:
            raise ApiError(400, str(error), "invalid_timetable") from None
        if runner is not None and call.token is not None and (no := call.token.refuses(runner)):
            raise ApiError(403, no, "runner_not_allowed")
        await self._ask(call, SetTimetable(_NO_ID, name, timetable, runner))
        return timetable_seen(await self._ask(call, GetTimetable(_NO_ID, name)))

    async def timetable(self, call: RouteCall) -> values.TimetableSeen:
        return timetable_seen(await self._ask(call, GetTimetable(_NO_ID, call.path["timetable"])))

    async def remove(self, call: RouteCall) -> None:
        await self._ask(call, RemoveTimetable(_NO_ID, call.path["timetable"]))

    async def pause(self, call: RouteCall) -> None:
        await self._ask(call, PauseTimetable(_NO_ID, call.path["timetable"]))

    async def resume(self, call: RouteCall) -> None:
        await self._ask(call, ResumeTimetable(_NO_ID, call.path["timetable"]))

    async def run(self, call: RouteCall) -> values.RunPlanned:
        reply: TimetableRun = await self._ask(call, RunTimetable(_NO_ID, call.path["timetable"]))
        return values.RunPlanned(reply.identifier)

    async def next(self, call: RouteCall) -> values.Firings:
        asked = NextOfTimetable(_NO_ID, call.path["timetable"], call.query.count)
        reply: NextFirings = await self._ask(call, asked)
        return values.Firings(
            [
                values.FiringSeen(time_text(each.at_s * NS_PER_S), each.local, each.warning)
                for each in reply.firings
            ]
        )

    async def backfill(self, call: RouteCall) -> values.BackfillAnswer:
        body: values.BackfillBody = call.body
        from_s = read_moment(body.begin, "from") // NS_PER_S
        until_s = read_moment(body.until, "until") // NS_PER_S
        asked = BackfillTimetable(_NO_ID, call.path["timetable"], from_s, until_s, body.preview)
        reply: Backfilled = await self._ask(call, asked)
        rows = [
            values.BackfillRow(
                row.identifier,
                time_text(row.execution_ns),
                None if row.status is None else row.status.word,
                row.is_run,
            )
            for row in reply.rows
        ]
        return values.BackfillAnswer(body.preview, rows)

    async def _ask(self, call: RouteCall, command: Any) -> Any:
        reply = await self._backend.ask_schedule(call, command)
        if isinstance(reply, TimetableNotFound):
            raise ApiError(
                404, f"there is no timetable {reply.identifier[:80]!r}", "timetable_not_found"
            )
        if isinstance(reply, TimetableRefused):
            raise ApiError(409, reply.reason, "timetable_refused")
        return reply


def timetable_seen(view: TimetableView) -> values.TimetableSeen:
    return values.TimetableSeen(
        view.identifier,
        view.state,
        view.fields,
        in_words(view.fields),
        None if view.next_ns is None else time_text(view.next_ns),
        None if view.next_ns is None else str(view.next_ns),
        view.next,
        view.last,
        view.running,
        view.waiting,
    )


def in_words(fields: dict[str, Any]) -> str:
    """What a timetable says, for people."""
    zone = fields.get("tz", "UTC")
    if "every" in fields:
        return f"every {fields['every']}"
    if "at" in fields:
        return f"at {fields['at']} ({zone})"
    try:
        return f"{CronSim(fields['cron'], _ANY).explain()} ({zone})"
    except CronSimError:
        return f"{fields['cron']} ({zone})"
