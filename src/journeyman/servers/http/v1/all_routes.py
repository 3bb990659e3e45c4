"""All routes of version 1, the document that describes them, and those about the server itself.

The server's own: health, figures, settings, tokens, live events.
"""

from __future__ import annotations

import asyncio
import platform
from dataclasses import dataclass
from functools import cache

import msgspec
from aiohttp import web

from journeyman import __version__
from journeyman.config import ALL_NAMESPACES, all_settings
from journeyman.config.kinds import as_toml
from journeyman.formats.ztick.codec import ALL_RUNNER_WORDS
from journeyman.servers.http import wire
from journeyman.servers.http.openapi import ErrorAnswers, describe
from journeyman.servers.http.problems import PROBLEM, ApiError, Problem
from journeyman.servers.http.routes import Route, RouteCall, Routes
from journeyman.servers.http.sending import FIGURES_S, Channel, event_bytes, stream_events
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.archive import ArchiveRoutes
from journeyman.servers.http.v1.audits import Audits
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.fan_out import FanOutRoutes
from journeyman.servers.http.v1.log import LogRoutes
from journeyman.servers.http.v1.past import PastRoutes
from journeyman.servers.http.v1.schedule import ScheduleRoutes, TimetableRoutes
from journeyman.servers.http.v1.series import SeriesRoutes
from journeyman.servers.http.v1.work import WorkRoutes
from journeyman.units import NS_PER_MS, NS_PER_S

V1_DOCUMENT_PATH = "/v1/openapi.json"
PROBLEMS = ErrorAnswers(
    Problem, PROBLEM, always=(400, 401, 403, 405, 408, 421, 503), with_body=(413, 415)
)

_SECRETS = frozenset({"storage.path"})  # it may be a database's address, with a password in it


@dataclass(frozen=True, slots=True)
class VersionOne:
    """The handlers, for the console as well."""

    schedule: ScheduleRoutes
    work: WorkRoutes
    fan_out: FanOutRoutes
    timetables: TimetableRoutes
    past: PastRoutes
    log: LogRoutes
    archive: ArchiveRoutes
    series: SeriesRoutes
    server: ServerRoutes

    @classmethod
    def of_backend(cls, backend: HttpBackend) -> VersionOne:
        past = PastRoutes(backend)
        return cls(
            ScheduleRoutes(backend),
            WorkRoutes(backend),
            FanOutRoutes(backend),
            TimetableRoutes(backend),
            past,
            LogRoutes(backend, past),
            ArchiveRoutes(backend),
            SeriesRoutes(backend),
            ServerRoutes(backend),
        )

    def routes(self) -> list[Route]:
        parts = (
            self.server,
            self.schedule,
            self.timetables,
            self.work,
            self.fan_out,
            self.log,
            self.past,
            self.archive,
            self.series,
        )
        return [route for part in parts for route in part.routes()]


def add_version_1(app: web.Application, version: VersionOne, audits: Audits) -> None:
    routes = version.routes()

    @cache
    def document() -> bytes:
        """Made when it is asked for: few ask, and it takes a megabyte."""
        return msgspec.json.encode(describe(routes, PROBLEMS))

    async def openapi(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp asks so
        return web.Response(body=document(), content_type="application/json")

    app.router.add_get(V1_DOCUMENT_PATH, openapi, allow_head=False)
    Routes(routes, audits.note).add_to(app)

    async def close(_: web.Application) -> None:
        version.past.close()
        version.log.tail.close()
        version.server.figures_live.close()

    app.on_shutdown.append(close)


class ServerRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend
        self._before: tuple[float, dict[str, int]] = (float("-inf"), {})
        self._rates: dict[str, float] = {}
        self.figures_live = Channel(self._next_figures, FIGURES_S)

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/health", self.health, "Whether the server is running", values.Health,
                  is_public=True),
            Route("GET", "/v1/ready", self.ready, "Whether every service takes commands",
                  values.Readiness, errors=(503,), is_public=True),
            Route("GET", "/v1/figures", self.figures, "The figures of the overview",
                  values.Figures, for_all=True),  # they count what belongs to others
            Route("GET", "/v1/events", self.events, "The figures, once a second", str,
                  media_type="text/event-stream", for_all=True),
            Route("GET", "/v1/settings", self.settings, "Settings in effect, with their origin",
                  values.SettingsAnswer, for_all=True),
            Route("GET", "/v1/tokens", self.tokens, "Tokens, without their secrets",
                  values.TokensSeen, for_all=True),
            Route("GET", "/v1/me", self.me, "The token of the request", values.OwnToken),
        ]  # fmt: skip

    async def health(self, call: RouteCall) -> values.Health:  # noqa: ARG002 - as every handler
        return values.Health("ok")

    async def ready(self, call: RouteCall) -> values.Readiness:  # noqa: ARG002 - as every handler
        backend = self._backend
        states = {
            name: "off" if service is None else service.state
            for name, service in (
                ("schedule", backend.schedule),
                ("work", backend.work),
                ("fan-out", backend.fan_out),
            )
        }
        stuck = backend.writes.stuck()
        if "ledger" in stuck:
            states["ledger"] = stuck["ledger"]
        if all(state in ("off", "ok") for state in states.values()):
            return values.Readiness(True, states)
        listed = ", ".join(f"{name}: {state}" for name, state in states.items())
        raise ApiError(503, listed, "stuck" if stuck else "not_ready", services=states)

    async def settings(self, call: RouteCall) -> values.SettingsAnswer:  # noqa: ARG002
        settings, origins = self._backend.settings, self._backend.origins
        found = []
        for setting in all_settings():
            value = setting.value_in(settings)
            text = None if value is None else as_toml(value)
            if setting.name in _SECRETS and text is not None and "://" in text:
                text = "(an address that may hold a password)"
            origin = origins.get(setting.name, "default")
            found.append(values.SettingView(setting.name, text, origin, setting.meaning))
        return values.SettingsAnswer(found)

    async def me(self, call: RouteCall) -> values.OwnToken:
        token, access = call.token, self._backend.access
        if token is None:
            return values.OwnToken("local", ALL_NAMESPACES, True, sorted(ALL_RUNNER_WORDS))
        seen = (token.name, token.namespace, token.may_write, sorted(token.runners))
        salt = access.salt_of(token.namespace) if token.may_write else b""
        return values.OwnToken(*seen, salt.hex() or None)

    async def tokens(self, call: RouteCall) -> values.TokensSeen:  # noqa: ARG002
        tokens = self._backend.access.tokens
        seen = [
            values.TokenSeen(each.name, each.namespace, each.may_write, sorted(each.runners))
            for each in (() if tokens is None else tokens)
        ]
        return values.TokensSeen(tokens is not None, seen)

    async def figures(self, call: RouteCall) -> values.Figures:  # noqa: ARG002
        return await self.measure()

    async def events(self, call: RouteCall) -> web.StreamResponse:
        return await stream_events(call.request, [self.figures_live])

    # -- figures --

    async def measure(self) -> values.Figures:
        """Measure the engines and the disk as they are now; rates are since the last measure."""
        backend = self._backend
        stats = backend.schedule.stats()
        schedule = {name: getattr(stats, name) for name in _SCHEDULE_FIGURES}
        work = fan_out = None
        counts = {"schedule": backend.schedule.writer.commands, "runs": _runs(backend)}
        connections = len(backend.schedule.port_context.sessions)
        if backend.work is not None:
            work = backend.work.figures.stats()._asdict()
            counts["work"] = backend.work.writer.commands
            connections += len(backend.work.port_context.sessions)
        if backend.fan_out is not None:
            fan_out = backend.fan_out.figures.stats()._asdict()
            counts["fan_out"] = backend.fan_out.writer.commands
            connections += len(backend.fan_out.port_context.sessions)
        now_ns = backend.clock.now_ns()
        return values.Figures(
            now_ns,
            (backend.clock.monotonic_ns() - backend.started_ns) / NS_PER_S,
            f"{__version__}, Python {platform.python_version()}",
            connections,
            schedule,
            work,
            fan_out,
            await self._disk(),
            self._rates_of(counts),
            {
                name: values.Sync(each.ended_ns, each.took_ns / NS_PER_MS)
                for name, each in backend.disk.last_syncs.copy().items()
            },
        )

    async def _disk(self) -> dict[str, dict[str, float]]:
        disk = self._backend.disk
        if not disk.samples:
            disk.samples = await asyncio.to_thread(disk.sample)
        return {
            name: {
                key: value
                for key, value in (("log_bytes", each.log_bytes), ("free_bytes", each.free_bytes))
                if value is not None
            }
            for name, each in disk.samples.items()
        }

    def _rates_of(self, counts: dict[str, int]) -> dict[str, float]:
        now = self._backend.clock.monotonic_ns() / NS_PER_S
        then, before = self._before
        if now - then >= FIGURES_S / 2:
            self._rates = {
                name: max(0.0, (count - before.get(name, count)) / (now - then))
                for name, count in counts.items()
            }
            self._before = (now, counts)
        return self._rates

    async def _next_figures(self) -> bytes | None:
        return event_bytes("figures", wire.encode_json(await self.measure()))


_SCHEDULE_FIGURES = (
    *("jobs_total", "jobs_planned", "jobs_triggered", "jobs_executed", "jobs_failed"),
    *("rules_total", "executions_pending", "executions_inflight"),
)


def _runs(backend: HttpBackend) -> int:
    return backend.schedule.runs.succeeded + backend.schedule.runs.failed
